"""Writes docs/integrations.md from benchmarks/results/integrations.json: run this file; a test compares the two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "integrations.json"
PAGE = ROOT / "docs" / "integrations.md"

# What a user adds, in at most three lines; tests/integrations/test_integrations_page.py runs them.
SNIPPETS = {
    "plain loop": """\
penalty = tacit.GradientPenalty(model, strength=2**-6)
penalty.backward(lambda: loss_fn(model(inputs), targets))""",
    "Lightning, automatic": """\
trainer = pl.Trainer(callbacks=[tacit.lightning.Penalty(strength=2**-6)])""",
    "Lightning, manual": """\
penalty = tacit.GradientPenalty(self, strength=2**-6)
self.manual_backward(penalty.loss(lambda: loss_fn(self(inputs), targets)))""",
    "Lightning Fabric": """\
penalty = tacit.lightning.FabricPenalty(model, strength=2**-6)
fabric.backward(penalty.loss(lambda: loss_fn(model(inputs), targets)))""",
    "Transformers `Trainer`": """\
class PenaltyTrainer(tacit.transformers.PenaltyMixin, Trainer): pass
trainer = PenaltyTrainer(model=model, args=args, train_dataset=rows, penalty=dict(strength=2**-6))""",
    "accelerate": """\
penalty = tacit.GradientPenalty(model, strength=2**-6)
accelerator.register_for_checkpointing(penalty)
accelerator.backward(penalty.loss(lambda: loss_fn(model(inputs), targets), scaler=accelerator.scaler))""",
}

# The same for sharpness-aware minimization, which the page has in one paragraph; run by the same test.
SAM = {
    "plain loop": """\
sam = tacit.SharpnessAware(model, radius=0.05, sampled=16)
sam.backward(lambda x, y: loss_fn(model(x), y), inputs, targets)""",
    "Lightning, automatic": """\
trainer = pl.Trainer(callbacks=[tacit.lightning.SharpnessAware(radius=0.05, sampled=16)])""",
    "Lightning, manual": """\
sam = tacit.SharpnessAware(self, radius=0.05, sampled=16)
self.manual_backward(sam.loss(lambda x, y: loss_fn(self(x), y), inputs, targets))""",
    "Lightning Fabric": """\
sam = tacit.lightning.FabricSharpnessAware(model, radius=0.05, sampled=16)
fabric.backward(sam.loss(lambda x, y: loss_fn(model(x), y), inputs, targets))""",
    "Transformers `Trainer`": """\
class SamTrainer(tacit.transformers.PenaltyMixin, Trainer): pass
trainer = SamTrainer(model=model, args=args, train_dataset=rows, penalty=dict(radius=0.05, sampled=16))""",
    "accelerate": """\
sam = tacit.SharpnessAware(model, radius=0.05, sampled=16)
accelerator.register_for_checkpointing(sam)
accelerator.backward(sam.loss(lambda x, y: loss_fn(model(x), y), inputs, targets, scaler=accelerator.scaler))""",
}

# The same calls with the number of the optimizer step, where no counter of a trainer can be read; run by the same test.
STEPS = {
    "plain loop": "penalty.backward(closure, weight=1 / k, step=call // k)",
    "Lightning, manual": "self.manual_backward(penalty.loss(closure, step=self.trainer.global_step) / k)",
    "Lightning Fabric": "fabric.backward(penalty.loss(closure, step=call // k) / k)",
    "accelerate": "accelerator.backward(penalty.loss(closure, scaler=accelerator.scaler, step=call // k))",
}

TEXT = """\
# The penalty in other people's trainers

`tacit` on PyPI is another project. In a clone of the repository: `pip install '.[lightning]'`, `'.[transformers]'` or
`'.[accelerate]'`. `import tacit` imports none of them.

{lines}

Models are those that `setup` or `prepare` returned. A trainer calls `backward` itself, after it has divided, scaled
or weighted the loss; a penalty inside that `backward` would see the changed loss and be wrong by the same factor once
more. `penalty.loss(closure)` returns a tensor whose value is Ĉ and whose `backward` hands out s · ∇(Ĉ + (λ/4)‖∇Ĉ‖²),
whatever factor s the trainer multiplies with.

**A sample, and SAM.** The penalty of one drawn micro-batch is `micro_batch_size=16, sampled=1` beside the strength;
`sampled=q` alone draws q of the batches that one optimizer step accumulates. SAM is
`tacit.lightning.SharpnessAware(radius=0.05, sampled=16)`, `tacit.lightning.FabricSharpnessAware(model, …)`,
`penalty=dict(radius=0.05, sampled=16)` in Transformers, and elsewhere `tacit.SharpnessAware(model, …)` in place of
`GradientPenalty`. A closure of your own takes the batch: `sam.loss(lambda x, y: …, inputs, targets)`. SAM logs
`tacit/direction_norm` in place of the penalty's numbers.

**float16.** Pass a GradScaler as `scaler=`, as the line for accelerate does, or small gradients are 0 in float16,
which a warning says. Lightning's callback, `FabricPenalty` and `PenaltyMixin` do it themselves.

**Steps.** Schedules and `every=k` count optimizer steps in Lightning's automatic optimization and in Transformers.
Elsewhere they count calls, unless each call names its optimizer step; with k accumulated batches:

{steps}

The coin of `probability=p` is one of each batch. A resumed run takes step counts and random state from the
checkpoint; a strength that is passed now wins over the stored one, and the log says so.

## Whole scripts

Each runs on a laptop in under a minute; the tests run them where the framework is installed.

| script | what it shows |
| --- | --- |
| `examples/plain_loop.py` | a plain loop that keeps its accuracy: plain, sampled penalty, sampled SAM |
| `examples/train_with_lightning.py` | Lightning: one callback |
| `examples/finetune_gpt2_lora.py` | Transformers and peft: one mixin |
| `examples/label_noise.py` | a third of the labels random: which of them are learned |
| `examples/own_study.py` | own data, own model, one question, a page |

Also `examples/train_with_accelerate.py` and, for several workers, `examples/ddp.py`.

## What was compared

Weights after 5 steps, with a plain loop that uses none of tacit and computes the penalty in other algebra: the
largest relative difference over the six places of the first table. A GPT-2 of two layers in float64, at most 1e-12
allowed; under autocast in float32, at most 1e-5.  *Without* is how far the same loop ends without the penalty, or
without SAM.

{matrix}

{counts} Made by `make integrations` with {versions}.

- *DDP*: each process has its own batch, and the penalty is the mean of theirs. *float16* is on a CPU.
- *unequal lengths*: accumulated batches count by their tokens; Lightning's automatic optimization counts them
  equally.
- *logged numbers*: against a naive count over all batches, at most 1e-6, because trainers log in float32.
- *all at once*: accumulation, clipping, DDP, resume, LoRA, checkpointing and evaluation together.

## Lightning

`tacit.lightning.Penalty` wraps `training_step` while `fit` runs. It logs `tacit/penalty`,
`tacit/gradient_squared_norm`, `tacit/batch_sharpness` and `tacit/gradient_share`, ‖(λ/2)∇²Ĉ∇Ĉ‖/‖∇Ĉ‖, as means over
the penalised batches since the last log, and `tacit/penalised_share` where not all are; `progress_bar=True` shows the
first two. Its state goes into checkpoints. With manual optimization give `penalty.loss(closure)` to
`manual_backward`, in `16-mixed` with `scaler=self.trainer.precision_plugin.scaler`; under DDP only `manual_backward`
reduces gradients.

Refused by name: strategies other than one device and DDP; `Penalty` and `SharpnessAware` at once; `FactoredSGD`,
LBFGS; `NStepSGD` with accumulation or `16-mixed`; `training_step(self, dataloader_iter)` with a method of several
passes or SAM; a `training_step` replaced during training; an own `backward` that does not use the loss that it gets.

## Transformers

`PenaltyMixin` wraps `compute_loss` in training, own losses too, wherever they are written; evaluation is left alone.
What an own `training_step` adds to `self.compute_loss` is not penalised. Ĉ is the mean loss of one batch, and batches
are weighted by their tokens as `Trainer` counts them (of GPT-2 one label per row too many; of BERT and T5 undivided
means are added up). A loss that fits none of its forms, as with mixtures of experts, is refused on the first batch
where several batches make a step; `trainer.model_accepts_loss_kwargs = False` works. It logs as Lightning's callback
does, on the scale of `loss` (`tacit/gradient_share` not of a sample), and reads numbers from the device only when
`Trainer` logs. The state is in `trainer_state.json`.

Refused by name: DeepSpeed, FSDP, DataParallel, Liger kernels, optimizers that step inside `backward` (LOMO) or need a
closure, TRL's trainers (a fused loss without a second derivative), `class T(Trainer, PenaltyMixin)`, and a
`training_step` that does not call `self.compute_loss` or calls `backward` on another tensor.

## Noise scale, and where rows go

`tacit.lightning.NoiseScale(every=100)` as a callback, and
`trainer.add_callback(tacit.transformers.NoiseScale(trainer, every=100))`, log Γ, ‖∇C‖² and the noise scale from
gradients that training computes anyway. Steps that carry a penalty are left out, because the noise of penalised
gradients is another (`every=2` leaves some).

`tacit.sinks.write(sink, row, step)` writes the finite numbers of a row, such as `penalty.last.to_row()`, to
TensorBoard's `SummaryWriter`, or to a tracker with the calls of wandb: `tacit.sinks.Tracker(run)`, also for the
modules wandb and trackio. A `Recorder` takes either as `writer`. composer is not included: beside torch 2.13 pip
finds only 0.3.1.
"""


def lines(snippets: dict[str, str]) -> str:
    rows = ["| where you train | what you add |", "| --- | --- |"]
    for title, code in snippets.items():
        cell = "<br>".join(f"`{line}`" for line in code.splitlines())
        rows.append(f"| {title} | {cell} |")
    return "\n".join(rows)


def steps() -> str:
    rows = [f"| {title} | `{code}` |" for title, code in STEPS.items()]
    return "\n".join(["| where you train | the call |", "| --- | --- |", *rows])


def matrix(stored: dict[str, Any]) -> str:
    """One row per case: the largest difference over all trainers; what is not exact is named with its trainers."""
    trainers, cells = stored["trainers"], {(cell["case"], cell["trainer"]): cell for cell in stored["cells"]}
    rows = ["| | largest difference | without |", "| --- | --- | --- |"]
    for case, title in stored["cases"].items():
        found = {name: cells[case, trainer] for trainer, name in trainers.items()}
        sees = min(cell["without_penalty"] for cell in found.values() if "without_penalty" in cell)
        exact = [cell["difference"] for cell in found.values() if cell["status"] == "exact"]
        parts = [f"{max(exact):.0e}" if max(exact) else "0"] if exact else []
        for status in ("refused", "warned", "wrong"):
            names = [name for name, cell in found.items() if cell["status"] == status]
            if names:
                worst = max(found[name].get("difference", 0.0) for name in names)
                mark = "**wrong**" if status == "wrong" else status
                parts.append(f"{mark}{f' {worst:.0e}' if worst else ''} ({', '.join(names)})")
        rows.append(f"| {title} | {'; '.join(parts)} | {sees:.1g} |")
    return "\n".join(rows)


def counts(stored: dict[str, Any]) -> str:
    found = [cell["status"] for cell in stored["cells"]]
    shown = ("exact", "refused", "warned", "wrong")
    return ", ".join(f"{found.count(status)} {status}" for status in shown) + "."


def page() -> str:
    stored = json.loads(RESULTS.read_text())
    versions = [f"{name} {version}" for name, version in stored["versions"].items()]
    return TEXT.format(
        lines=lines(SNIPPETS), steps=steps(), matrix=matrix(stored), counts=counts(stored),
        versions=", ".join(versions[:-1]) + " and " + versions[-1],
    )  # fmt: skip


if __name__ == "__main__":
    PAGE.write_text(page())
