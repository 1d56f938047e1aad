"""The cases and versions of the stored matrix are those of today, and the lines of code of docs/integrations.md run."""

from __future__ import annotations

import importlib.util
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tacit
from tacit.integrations.frameworks import OLDEST, release

ROOT = Path(__file__).parents[2]


def page_module() -> Any:
    spec = importlib.util.spec_from_file_location("integrations_page", ROOT / "docs" / "integrations_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGE = page_module()
STORED = json.loads(PAGE.RESULTS.read_text())


def test_the_matrix_was_made_with_versions_that_the_extras_allow() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name in OLDEST:
        (wanted,) = [entry for entry in extras[name] if entry.startswith(name)]
        assert f"{name}>={OLDEST[name]}," in wanted
        assert release(STORED["versions"][name])[:2] == release(OLDEST[name])
    assert {"!=2.6.2", "!=2.6.3"} <= set(extras["lightning"][0].split(","))


def test_the_stored_cases_are_those_of_the_tests() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    from integration_reference import CASES

    assert STORED["cases"] == {name: case.title for name, case in CASES.items()}


def plain_names() -> dict[str, Any]:
    inputs, targets = torch.randn(4, 3), torch.randint(0, 2, (4,))
    return {
        "tacit": tacit,
        "model": nn.Linear(3, 2),
        "inputs": inputs,
        "targets": targets,
        "loss_fn": nn.CrossEntropyLoss(),
    }


def lightning_names() -> dict[str, Any]:
    pl = pytest.importorskip("lightning.pytorch", reason="lightning is not installed; make integrations runs this")
    from lightning.fabric import Fabric

    class Self(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, inputs: Any) -> Any:
            return self.layer(inputs)

        def manual_backward(self, loss: Any) -> None:  # needs a trainer otherwise
            loss.backward()

    fabric = Fabric(accelerator="cpu")
    return {**plain_names(), "pl": pl, "self": Self(), "fabric": fabric, "model": fabric.setup(nn.Linear(3, 2))}


def transformers_names(folder: Path) -> dict[str, Any]:
    transformers = pytest.importorskip(
        "transformers", reason="transformers is not installed; make integrations runs this"
    )
    args = transformers.TrainingArguments(output_dir=str(folder), use_cpu=True, report_to=[])
    config = transformers.GPT2Config(vocab_size=4, n_positions=4, n_embd=4, n_layer=1, n_head=1)
    model = transformers.GPT2LMHeadModel(config)
    return {**plain_names(), "Trainer": transformers.Trainer, "args": args, "model": model, "rows": []}


def accelerate_names() -> dict[str, Any]:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed; make integrations runs this")
    accelerator = accelerate.Accelerator(cpu=True)
    return {**plain_names(), "accelerator": accelerator, "model": accelerator.prepare(nn.Linear(3, 2))}


@pytest.mark.parametrize("snippets", ["SNIPPETS", "SAM"])
@pytest.mark.parametrize("title", PAGE.SNIPPETS)
def test_the_lines_that_a_user_adds_run_and_are_at_most_three(title: str, snippets: str, tmp_path: Path) -> None:
    code = getattr(PAGE, snippets)[title]
    assert len(code.splitlines()) <= 3
    names: dict[str, Any]
    if title.startswith("Lightning"):
        names = lightning_names()
    elif title.startswith("Transformers"):
        names = transformers_names(tmp_path)
    else:
        names = accelerate_names() if title == "accelerate" else plain_names()
    exec(compile(code, title, "exec"), names)
    if "sam" in names:
        assert float(names["sam"].last.direction_norm) > 0
        assert all(parameter.grad is not None for parameter in names["sam"].model.parameters())
    if "penalty" in names:
        assert float(names["penalty"].last.penalty) > 0
        assert all(parameter.grad is not None for parameter in names["penalty"].model.parameters())


@pytest.mark.parametrize("title", PAGE.STEPS)
def test_the_calls_with_the_number_of_the_step_run(title: str) -> None:
    names = plain_names()
    if title.startswith("Lightning"):
        names = lightning_names()
    elif title == "accelerate":
        names = accelerate_names()
    model, inputs, targets, loss_fn = (names[name] for name in ("model", "inputs", "targets", "loss_fn"))
    kind = tacit.GradientPenalty
    if title == "Lightning Fabric":
        kind = tacit.lightning.FabricPenalty
    elif title == "Lightning, manual":
        model = names["self"]
        model.trainer = names["pl"].Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    penalty = kind(model, strength=lambda step: 0.5 if step == 0 else 0.0)
    names |= {"penalty": penalty, "closure": lambda: loss_fn(model(inputs), targets), "k": 2}
    for names["call"] in range(2):
        exec(compile(PAGE.STEPS[title], title, "exec"), names)
        assert penalty.last.strength == 0.5
