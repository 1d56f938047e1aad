"""The README says what the stored results say, and shows what a visitor needs on its first screen."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import tacit

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def tables() -> Any:
    location = importlib.util.spec_from_file_location("readme_tables", ROOT / "docs" / "readme_tables.py")
    module = importlib.util.module_from_spec(location)
    location.loader.exec_module(module)
    return module


FIRST_SCREEN = "\n".join(README.splitlines()[:45])


def test_the_readme_is_read_in_minutes() -> None:
    assert len(README.split()) <= 700


def test_the_first_screen_says_what_it_is_when_to_use_it_and_what_to_type() -> None:
    needed = ("pip install .", "make reproduce", "make test", "```diff", "penalty.backward(", "**Use it when**",
              "**Not when**", "weight decay", "SAM")  # fmt: skip
    assert [words for words in needed if words not in FIRST_SCREEN] == []
    first_sentence = README.split("\n\n")[1].split(". ")[0]
    assert not re.search(r"[ε∇λ‖=²]", first_sentence)


def test_every_number_of_the_first_screen_is_made_from_a_stored_result() -> None:
    """The others are names: of the paper's year, of Python's version, of a dataset, and what the code has."""
    made = "|".join(rf"<!-- {name} -->.*?<!-- /{name} -->" for name in tables().PAGES["README.md"])
    typed = re.sub(rf"{made}|```.*?```|https?://\S+", "", FIRST_SCREEN, flags=re.DOTALL)
    assert re.findall(r"\d[\d.,]*", typed.replace("ICLR 2021", "").replace("Python 3.11", "")) == []


@pytest.mark.parametrize(
    ("page", "written"),
    [("README.md", "tacit.Relative(0.4)"), ("docs/train-models.md", "tacit.Relative(0.4)")],
)
def test_the_diff_trains_as_before_and_keeps_the_outputs(page: str, written: str) -> None:
    """Both sides of it run; without a strength they end at the same weights and accuracy, with one elsewhere."""
    (diff,) = re.findall(r"```diff\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)

    def trained(side: str, strength: str = written) -> tuple[torch.Tensor, int]:
        kept = [line[2:] for line in diff.splitlines() if line[0] in (" ", side)]
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        names: dict[str, Any] = {
            "torch": torch, "tacit": tacit, "model": model, "loss_fn": torch.nn.functional.cross_entropy, "correct": 0,
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.5),
            "loader": [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(3)],
        }  # fmt: skip
        code = "\n".join(kept)
        assert side == "-" or written in code
        exec(compile(code.replace(written, strength), page, "exec"), names)
        return torch.cat([each.detach().flatten() for each in model.parameters()]), names["correct"]

    plain, right = trained("-")
    same, also_right = trained("+", strength="0.0")
    assert torch.equal(plain, same)
    assert right == also_right
    assert not torch.allclose(plain, trained("+")[0], rtol=1e-4)


def test_no_page_sends_a_reader_to_an_index_that_has_no_tacit() -> None:
    """The name is another project's there. CONTRIBUTING may: its line is the last step of a release."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").glob("*.py"))]
    for page in [*pages, *sorted((ROOT / "src").rglob("*.py"))]:
        assert not re.search(r"pip install[^`#\n]*[ '\"]tacit\b", page.read_text()), page


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/integrations.md"])
def test_who_looks_for_it_on_pypi_is_told_that_another_project_has_the_name(page: str) -> None:
    assert re.search(r"tacit`? on\s+PyPI is\s+another project", (ROOT / page).read_text())


def test_the_accelerate_row_hands_over_the_scaler() -> None:
    (row,) = [line for line in README.splitlines() if line.startswith("| accelerate")]
    assert "scaler=accelerator.scaler" in row


def test_every_local_link_leads_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    for page in pages:
        for target in re.findall(r"\]\((?!https?://|#|mailto:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
