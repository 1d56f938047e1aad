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

# Sharpness-aware minimization with its direction from drawn rows; run by the same test.
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

In a clone of the repository: `pip install '.[lightning]'`, `'.[transformers]'` or `'.[accelerate]'`. `tacit` on
PyPI is another project. `import tacit` imports none of them.

A trainer calls `backward` itself, after it has divided the loss by the number of accumulated batches, scaled it for
half precision or weighted it by tokens. A penalty computed inside that `backward` sees the changed loss: of the loss
divided by k, the squared gradient norm is divided by k², and nothing says so. `penalty.loss(closure)` returns a tensor
whose value is the loss Ĉ and whose `backward` hands out s · ∇(Ĉ + (λ/4)‖∇Ĉ‖²), where s is whatever the trainer
multiplied with.

## In at most three lines

{lines}

Models are those that `setup` or `prepare` returned. Whole scripts: `examples/plain_loop.py`, `examples/ddp.py`,
`examples/train_with_lightning.py`, `examples/finetune_gpt2_lora.py`, `examples/train_with_accelerate.py`.

In float16 with a GradScaler pass it as `scaler=` too, as the line for accelerate does: the passes run before anybody
multiplies the loss, and without the scaler small gradients are 0 in float16, which a warning says. The callback of
Lightning, `FabricPenalty` and `PenaltyMixin` pass it themselves. `accelerator.scaler` is None without float16.

## What a step is

A schedule of the strength and `every=k` count optimizer steps in Lightning's automatic optimization (`global_step`) and
in Transformers (`state.global_step`). Elsewhere they count calls, unless each call says which optimizer step it is part
of; with k accumulated batches:

{steps}

The coin of `probability=p` is one of each batch everywhere: a whole step with λ/p would meet the stability edge.

A resumed run takes step counts and random state from the checkpoint. A strength that is passed now and is not the one
that the stored run was made with wins, and one line of the log says so.

## SAM, and a few rows of each batch

`tacit.SharpnessAware` goes into the same places, by the same rules: each batch has its own direction g, of the whole
batch or with `sampled=n` of n drawn rows of it. Loss, outputs and logs are those of the whole batch at the moved
parameters, once; the trainer logs `tacit/direction_norm`, ‖g‖, in place of the penalty's numbers. Schedules of the
radius count optimizer steps as those of the strength do.

{sam}

The penalty of a few rows is `micro_batch_size=16, sampled=1` in place of `sampled=16`, beside the strength:
`tacit.lightning.Penalty(strength=2**-6, micro_batch_size=16, sampled=1)`. `sampled=q` alone is the penalty of q of the
batches that one optimizer step accumulates. What takes a closure takes the batch beside it, as above.

## The matrix

Largest relative difference of the weights after 5 steps from a plain loop that uses none of tacit: its penalty is
computed in other algebra, (λ/2) ∇²Ĉ·∇Ĉ by forward-mode differentiation (under autocast by a second backward pass). A
GPT-2 of two layers in float64, at most 1e-12 allowed; under autocast in float32, at most 1e-5. λ falls from step to
step, and no two batches are alike, so that a step or a batch lost or repeated is seen. The last column is how far the
same loop ends without the penalty, or without SAM: what the comparison can see.

{matrix}

{counts}
Made by `make integrations` with {versions}.

- *DDP, 2 processes*: each process has its own batch, and the penalty is the mean of theirs (`norm_of="micro_batch"`).
- *float16, GradScaler*: on a CPU. accelerate leaves float16 out on a CPU without a word; the test puts it in.
- *unequal lengths*: accumulated batches count by their tokens (`num_items_in_batch` of Transformers). Lightning's
  automatic optimization counts batches equally, and is compared with a loop that does.
- *own loss*: half of the model's loss, and the mean square of its outputs; in Transformers an own `compute_loss` on top
  of `super()`'s, in the class that has the mixin.
- *loss that divides by a count*: in Transformers a `compute_loss_func` that divides by `num_items_in_batch` and cannot
  do without it; elsewhere the model's own loss with token weights.
- *resumed with another strength*: λ = 0.1, and 0.4 passed to the program that resumes.
- *logged numbers*: the penalty, its share of the gradient and the share of penalised batches, against a naive count
  over all batches, at most 1e-6 (trainers log in float32). Lightning's callback and Transformers log them; elsewhere
  they are read off `penalty.last`.
- *sampled*: the rows are those that the draw gives to this process and call; λ or the radius falls from step to step.
- *SAM*: against autograd at ω + ρ g/‖g‖, with the radius in place of λ. Every process has its own direction.
- *no `scaler=`*: where the user passes it, it is left out: not exact, and warned of by a sentence that names it.
- *all in float64 at once*: accumulation 2, clipping, DDP, resume, LoRA, gradient checkpointing and evaluation together.

## Lightning

`tacit.lightning.Penalty` wraps `training_step` while `fit` runs, whether it returns a tensor, a dict or None. It logs
`tacit/penalty`, `tacit/gradient_squared_norm`, `tacit/batch_sharpness` and `tacit/gradient_share`, ‖(λ/2)∇²Ĉ∇Ĉ‖/‖∇Ĉ‖,
as means over the penalised batches since Lightning last wrote its logs, and `tacit/penalised_share` where not all are;
a window without a penalised batch repeats the numbers of the last one. `progress_bar=True` shows the penalty and its
share there. Its state goes into checkpoints. With manual optimization make a `tacit.GradientPenalty` and give
`penalty.loss(closure)` to `manual_backward`; in `16-mixed` also pass `scaler=self.trainer.precision_plugin.scaler`.
Under DDP `penalty.backward` in `training_step` is refused: only `manual_backward` reduces gradients there.

Refused by name: strategies other than one device and DDP, `Penalty` and `SharpnessAware` at once, `FactoredSGD` (it has
the penalty inside), LBFGS (the gradient is not that of the loss that its line search sees), `NStepSGD` with
accumulation or with `16-mixed`, which calls `step` without a closure, `training_step(self, dataloader_iter)` with a
method of several passes or SAM. Refused before the first optimizer step: a `training_step` that was replaced after
training had started, and a `backward` of one's own that does not use the loss that it gets.

## Transformers

`PenaltyMixin` wraps the trainer's `compute_loss` in training and leaves evaluation alone: a loss of one's own, terms
added to that of `super()`, and losses made of its outputs are penalised, in the class that has the mixin, below it or
above it. What a `training_step` of one's own adds to `self.compute_loss` is not. Where `Trainer` divides token sums by
the tokens of all accumulated batches, Ĉ is the mean loss of one batch, and batches are weighted by their tokens. Of
some models (GPT-2) `Trainer` counts one label per row too many; the weights follow `Trainer`, so that the loss stays
the one it reports. Models that ignore the count (BERT, T5) make `Trainer` add up the mean losses of accumulated batches
undivided, and their penalties with them. A loss that only divides by the count is taken over the
tokens that `Trainer` counts in its batch. A loss that fits none of these, as with the auxiliary loss of mixtures of
experts, is seen on the first batch and refused, where several batches make a step;
`trainer.model_accepts_loss_kwargs = False` makes `Trainer` take the mean over batches, and works. The state is in
`trainer_state.json`.

Beside `loss`, over the same steps and on its scale, it logs `tacit/penalty`, the mean over penalised batches (with
`every=k` they carry kλ), `tacit/gradient_share` where it costs nothing (not of a sample), and `tacit/penalised_share`
where not all batches are penalised. Numbers are read from the device when `Trainer` logs, and not before.

Refused before the first optimizer step: a `training_step` that does not call `self.compute_loss`, or calls `backward`
on another tensor. `class T(Trainer, PenaltyMixin)` is refused when the class is made.

Refused by name: DeepSpeed, FSDP, DataParallel, Liger kernels, optimizers that step inside `backward` (LOMO) or need a
closure; TRL's trainers, since the loss of `SFTTrainer` (TRL 1.16) is a fused kernel without a second derivative.

## Noise scale

`tacit.lightning.NoiseScale(every=100)` as a callback of Lightning, and
`trainer.add_callback(tacit.transformers.NoiseScale(trainer, every=100))`, log Γ, ‖∇C‖² and the noise scale of
`tacit.Recorder` from gradients that training computes anyway, over all accumulated batches and devices, before they are
clipped. {recorder}

## Where rows go

`tacit.sinks.write(sink, row, step)` writes the finite numbers of a row, such as `penalty.last.to_row()`, to
TensorBoard's `SummaryWriter`, or to a tracker with the calls of wandb: `tacit.sinks.Tracker(run)` for a run of wandb,
or for the modules wandb and trackio. A `Recorder` takes either as `writer`.

## Not included

composer: beside torch 2.13 pip finds only release 0.3.1. It would be an `Algorithm` that puts `penalty.loss` in
place of `state.loss` at `Event.AFTER_LOSS`; untested.
"""
RECORDER = (
    "Steps that carry a penalty are left out: the noise of penalised gradients is another (`every=2` leaves some)."
)


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
    trainers, cells = stored["trainers"], {(cell["case"], cell["trainer"]): cell for cell in stored["cells"]}
    rows = [f"| | {' | '.join(trainers.values())} | without |", "| --- |" + " --- |" * (len(trainers) + 1)]
    for case, title in stored["cases"].items():
        found = [cells[case, trainer] for trainer in trainers]
        sees = min(cell["without_penalty"] for cell in found if "without_penalty" in cell)
        rows.append(f"| {title} | {' | '.join(map(_cell, found))} | {sees:.1g} |")
    return "\n".join(rows)


def _cell(cell: dict[str, Any]) -> str:
    if cell["status"] == "refused":
        return "refused"
    if cell["status"] == "warned":
        return f"warned: {cell['difference']:.0e}"
    if cell["difference"] == 0:
        return "0"
    return f"{cell['difference']:.0e}" if cell["status"] == "exact" else f"**wrong: {cell['difference']:.0e}**"


def counts(stored: dict[str, Any]) -> str:
    found = [cell["status"] for cell in stored["cells"]]
    shown = ("exact", "refused", "warned", "wrong")
    return ", ".join(f"{found.count(status)} {status}" for status in shown) + "."


def page() -> str:
    stored = json.loads(RESULTS.read_text())
    versions = [f"{name} {version}" for name, version in stored["versions"].items()]
    return TEXT.format(
        lines=lines(SNIPPETS), sam=lines(SAM), steps=steps(), matrix=matrix(stored), counts=counts(stored),
        recorder=RECORDER,
        versions=", ".join(versions[:-1]) + " and " + versions[-1],
    )  # fmt: skip


if __name__ == "__main__":
    PAGE.write_text(page())
