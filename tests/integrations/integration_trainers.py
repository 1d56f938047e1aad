"""The six ways to train a case with the penalty, each as its users would write it. Return: weights after five steps."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from integration_reference import (
    BATCH,
    DTYPES,
    INITIAL_SCALE,
    STEPS,
    Case,
    batches,
    examples,
    groups,
    items,
    logged_numbers,
    loss_of,
    make_model,
    optimizer_for,
    strength_for,
    weights,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import tacit

Weights = dict[str, Tensor]
OTHER_SEED = 7  # a resumed run starts from other weights, which the checkpoint must replace


def scaler_for(case: Case) -> torch.amp.GradScaler | None:
    return torch.amp.GradScaler("cpu", init_scale=INITIAL_SCALE) if case.precision == "fp16" else None


def use_scaler(accelerator: Any, case: Case) -> None:
    """accelerate leaves float16 out on a CPU, without a word; here it is put in, and the rest is accelerate's."""
    if case.precision == "fp16":
        accelerator.native_amp, accelerator.scaler = True, scaler_for(case)


def rank() -> int:
    return int(os.environ.get("RANK", 0))


def stretches(case: Case) -> list[tuple[int, int]]:
    """The steps of each start of the program: all five, or those before and after a checkpoint."""
    return [(0, STEPS)] if case.stop_after is None else [(0, case.stop_after), (case.stop_after, STEPS)]


def checkpointed(model: Any, case: Case) -> Any:
    if case.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def rule_for(case: Case) -> Any:
    return tacit.SharpnessAware if case.sam else tacit.GradientPenalty


def options(case: Case) -> dict[str, Any]:
    if case.sam:
        return {} if case.sampled is None else {"sampled": case.sampled}
    sampled = {"micro_batch_size": case.micro_batch_size, "sampled": case.sampled}
    return {"method": case.method, "every": case.every, **{k: v for k, v in sampled.items() if v is not None}}


def given(case: Case, batch: Any, place: int) -> tuple[list[Any], dict[str, Any]]:
    """What a call of the penalty gets beside its closure: the batch where rows are drawn, and which call it is."""
    if case.sam:
        return [batch] if case.sampled else [], {}
    whole_calls = case.sampled is not None and case.micro_batch_size is None
    return [batch] if case.micro_batch_size else [], {"part": (place, case.accumulation)} if whole_calls else {}


class Log:
    """What a user who reads `penalty.last` after each call adds up."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, float]] = []
        self.calls = 0

    def add(self, penalty: tacit.GradientPenalty) -> None:
        self.calls += 1
        last = penalty.last
        if isinstance(penalty, tacit.GradientPenalty) and last.strength and last.penalty_gradient_norm is not None:
            share = last.penalty_gradient_norm / last.gradient_squared_norm.sqrt()
            self.rows.append((float(last.penalty), float(share)))

    def numbers(self) -> Weights:
        penalty, share = (sum(each) / len(self.rows) for each in zip(*self.rows, strict=True))
        return logged_numbers(penalty, share, len(self.rows) / self.calls)


def evaluate(model: nn.Module, penalty: tacit.GradientPenalty, case: Case) -> None:
    model.eval()
    with torch.no_grad():
        for batch in batches(case)[:2]:
            penalty.loss(lambda batch=batch: model(**batch).loss)
    model.train()


def plain(case: Case, folder: Path) -> Weights:
    if case.world > 1:
        torch.distributed.init_process_group("gloo")
    log = Log()
    for first, end in stretches(case):
        model = checkpointed(make_model(case, seed=OTHER_SEED if first else 0), case)
        wrapped = DistributedDataParallel(model) if case.world > 1 else model
        optimizer, scaler = optimizer_for(model), scaler_for(case)
        penalty = rule_for(case)(wrapped, strength_for(case, first), **options(case))
        if first:
            stored = torch.load(folder / "state.pt")
            for part, state in zip((model, optimizer, penalty), stored, strict=True):
                part.load_state_dict(state)
        for step, parts in enumerate(groups(case, rank=rank())):
            if not first <= step < end:
                continue
            optimizer.zero_grad()
            tokens = sum(items(batch) for batch in parts)
            for place, batch in enumerate(parts):

                def closure(batch: Any = batch) -> Tensor:
                    with torch.autocast("cpu", DTYPES[case.precision]) if case.precision in DTYPES else nullcontext():
                        return loss_of(case, wrapped(**batch))  # noqa: B023

                share = items(batch) / tokens if case.token_weights else 1 / len(parts)
                last = place == len(parts) - 1
                with nullcontext() if last or case.world == 1 else wrapped.no_sync():
                    passed = {"scaler": scaler} if case.pass_scaler else {}
                    rows, part = given(case, batch, place)
                    loss = share * penalty.loss(closure, *rows, step=step, **passed, **part)
                    log.add(penalty)
                    (loss if scaler is None else scaler.scale(loss)).backward()
            if scaler is not None:
                scaler.unscale_(optimizer)
            if case.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), case.clip)
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            if case.evaluate:
                evaluate(model, penalty, case)
        if end < STEPS and rank() == 0:
            torch.save([part.state_dict() for part in (model, optimizer, penalty)], folder / "state.pt")
        if case.world > 1:
            torch.distributed.barrier()
    return log.numbers() if case.logged else weights(model)


def lightning_automatic(case: Case, folder: Path) -> Weights:
    return _lightning(case, folder, manual=False)


def lightning_manual(case: Case, folder: Path) -> Weights:
    return _lightning(case, folder, manual=True)


def _lightning(case: Case, folder: Path, *, manual: bool) -> Weights:
    import lightning.pytorch as pl
    from lightning.pytorch.plugins import MixedPrecision
    from torch.utils.data import DataLoader

    log = Log()

    class Module(pl.LightningModule):
        def __init__(self, model: nn.Module, first: int) -> None:
            super().__init__()
            self.model = model
            self.automatic_optimization = not manual
            strength = strength_for(case, first)
            self.penalty = rule_for(case)(model, strength, **options(case)) if manual else None

        def training_step(self, batch: Any, index: int) -> Any:
            if not manual:
                loss = loss_of(case, self.model(**batch))
                self.log("loss", loss)
                return {"loss": loss, "seen": index} if index % 2 else loss
            parts = next(group for k, group in enumerate(groups(case, rank=rank())) if k == index // case.accumulation)
            share = items(batch) / sum(map(items, parts)) if case.token_weights else 1 / case.accumulation
            scaler = getattr(self.trainer.precision_plugin, "scaler", None)
            passed = {"scaler": scaler} if case.pass_scaler else {}
            step = self.trainer.global_step
            rows, part = given(case, batch, index % case.accumulation)
            loss = self.penalty.loss(
                lambda batch=batch: loss_of(case, self.model(**batch)), *rows, step=step, **passed, **part
            )
            log.add(self.penalty)
            last = (index + 1) % case.accumulation == 0
            with nullcontext() if last or case.world == 1 else self.trainer.strategy.block_backward_sync():
                self.manual_backward(share * loss)
            if last:
                optimizer = self.optimizers()
                if case.clip is not None:
                    self.clip_gradients(optimizer, case.clip, "norm")
                optimizer.step()
                optimizer.zero_grad()
            return None

        def validation_step(self, batch: Any, index: int) -> Any:
            self.log("validation", self.model(**batch).loss)

        def configure_optimizers(self) -> Any:
            return optimizer_for(self.model)

        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            if manual:
                checkpoint["penalty"] = self.penalty.state_dict()

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            if manual:
                self.penalty.load_state_dict(checkpoint["penalty"])

    callback = tacit.lightning.SharpnessAware if case.sam else tacit.lightning.Penalty
    for first, end in stretches(case):
        module = Module(checkpointed(make_model(case, seed=OTHER_SEED if first else 0), case), first)
        precision: dict[str, Any] = {"precision": {"bf16": "bf16-mixed"}.get(case.precision)}
        if case.precision == "fp16":
            precision = {"plugins": [MixedPrecision("16-mixed", "cpu", scaler=scaler_for(case))]}
        accumulating = {} if manual else {"accumulate_grad_batches": case.accumulation, "gradient_clip_val": case.clip}
        trainer = pl.Trainer(
            accelerator="cpu", devices=case.world, strategy="ddp" if case.world > 1 else "auto", max_steps=end,
            default_root_dir=folder, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, use_distributed_sampler=False,
            callbacks=[] if manual else [callback(strength_for(case, first), **options(case))],
            log_every_n_steps=STEPS,
            val_check_interval=case.accumulation if case.evaluate else None,  # validation clears gradients
            limit_val_batches=2 if case.evaluate else 0,
            num_sanity_val_steps=2 if case.evaluate else 0, **accumulating, **precision,
        )  # fmt: skip
        # Lightning does not skip batches that a checkpoint has seen, unless the loader can do it.
        rows, seen = batches(case, rank=rank()), first * case.accumulation
        loader = DataLoader(rows[seen:] + rows[:seen], batch_size=None)
        validation = DataLoader(batches(case)[:2], batch_size=None)
        stored = folder / "state.ckpt"
        trainer.fit(module, loader, validation if case.evaluate else None, ckpt_path=stored if first else None)
        if end < STEPS:
            trainer.save_checkpoint(stored)
    if case.logged and manual:
        return log.numbers()
    if case.logged:
        seen = trainer.callback_metrics
        return logged_numbers(*(seen[f"tacit/{name}"] for name in ("penalty", "gradient_share", "penalised_share")))
    return weights(module.model)


def fabric(case: Case, folder: Path) -> Weights:
    from lightning.fabric import Fabric
    from lightning.fabric.plugins import MixedPrecision

    kwargs: dict[str, Any] = {"precision": {"bf16": "bf16-mixed"}.get(case.precision)}
    if case.precision == "fp16":
        kwargs = {"plugins": [MixedPrecision("16-mixed", "cpu", scaler=scaler_for(case))]}
    strategy = "ddp" if case.world > 1 else "auto"
    runner = Fabric(accelerator="cpu", devices=case.world, strategy=strategy, **kwargs)
    runner.launch()
    log = Log()
    for first, end in stretches(case):
        bare = checkpointed(make_model(case, seed=OTHER_SEED if first else 0), case)
        model, optimizer = runner.setup(bare, optimizer_for(bare))
        kind = tacit.lightning.FabricSharpnessAware if case.sam else tacit.lightning.FabricPenalty
        penalty = kind(model, strength_for(case, first), **options(case))
        state = {"model": model, "optimizer": optimizer, "penalty": penalty}
        if first:
            runner.load(folder / "state.ckpt", state)
        for step, parts in enumerate(groups(case, rank=rank())):
            if not first <= step < end:
                continue
            optimizer.zero_grad()
            tokens = sum(items(batch) for batch in parts)
            for place, batch in enumerate(parts):
                share = items(batch) / tokens if case.token_weights else 1 / len(parts)
                with runner.no_backward_sync(model, enabled=place < len(parts) - 1):
                    rows, part = given(case, batch, place)
                    loss = penalty.loss(
                        lambda batch=batch: loss_of(case, model(**batch)),  # noqa: B023
                        *rows, step=step, **part,
                    )  # fmt: skip
                    log.add(penalty)
                    runner.backward(share * loss)
            if case.clip is not None:
                runner.clip_gradients(model, optimizer, max_norm=case.clip)
            optimizer.step()
            if case.evaluate:
                evaluate(model, penalty, case)
        if end < STEPS:
            runner.save(folder / "state.ckpt", state)
            runner.barrier()
    return log.numbers() if case.logged else weights(bare)


def accelerate(case: Case, folder: Path) -> Weights:
    from accelerate import Accelerator

    precision = {"64": "no"}.get(case.precision, case.precision)
    accelerator = Accelerator(
        cpu=True, mixed_precision=precision, gradient_accumulation_steps=case.accumulation,
    )  # fmt: skip
    use_scaler(accelerator, case)
    log = Log()
    for first, end in stretches(case):
        bare = checkpointed(make_model(case, seed=OTHER_SEED if first else 0), case)
        accelerator.free_memory()
        model, optimizer = accelerator.prepare(bare, optimizer_for(bare))
        penalty = rule_for(case)(model, strength_for(case, first), **options(case))
        accelerator._custom_objects.clear()
        accelerator.register_for_checkpointing(penalty)
        if first:
            accelerator.load_state(str(folder / "state"))
        for step, parts in enumerate(groups(case, rank=rank())):
            if not first <= step < end:
                continue
            tokens = sum(items(batch) for batch in parts)
            for place, batch in enumerate(parts):
                with accelerator.accumulate(model):
                    passed = {"scaler": accelerator.scaler} if case.pass_scaler else {}
                    rows, part = given(case, batch, place)
                    loss = penalty.loss(
                        lambda batch=batch: loss_of(case, model(**batch)),  # noqa: B023
                        *rows, step=step, **passed, **part,
                    )  # fmt: skip
                    log.add(penalty)
                    if case.token_weights:
                        loss = loss * items(batch) / tokens * case.accumulation
                    accelerator.backward(loss)
                    if accelerator.sync_gradients and case.clip is not None:
                        accelerator.clip_grad_norm_(model.parameters(), case.clip)
                    optimizer.step()
                    optimizer.zero_grad()
            if case.evaluate:
                evaluate(model, penalty, case)
        if end < STEPS:
            accelerator.save_state(str(folder / "state"))
            accelerator.wait_for_everyone()
    return log.numbers() if case.logged else weights(bare)


def trainer(case: Case, folder: Path) -> Weights:
    from torch.utils.data import SequentialSampler
    from transformers import Trainer, TrainingArguments

    class Rows(torch.utils.data.Dataset):
        def __init__(self, count: int | None = None) -> None:
            self.rows = {name: tensor[:count] for name, tensor in examples(case).items()}

        def __len__(self) -> int:
            return len(self.rows["labels"])

        def __getitem__(self, index: int) -> dict[str, Tensor]:
            return {name: tensor[index] for name, tensor in self.rows.items()}

    class Penalised(tacit.transformers.PenaltyMixin, Trainer):
        def _get_train_sampler(self, *arguments: Any, **named: Any) -> Any:
            return SequentialSampler(self.train_dataset)

    class OwnLoss(Penalised):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **named: Any) -> Any:
            loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **named)
            loss = loss_of(case, {"loss": loss, **outputs})
            return (loss, outputs) if return_outputs else loss

    def token_sum(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        logits = outputs["logits"][:, :-1].reshape(-1, outputs["logits"].shape[-1])
        return F.cross_entropy(logits, labels[:, 1:].reshape(-1), reduction="sum") / num_items_in_batch

    value = "radius" if case.sam else "strength"
    for first, end in stretches(case):
        model = make_model(case, seed=OTHER_SEED if first else 0)
        arguments = TrainingArguments(
            output_dir=str(folder), use_cpu=True, max_steps=STEPS, per_device_train_batch_size=BATCH,
            gradient_accumulation_steps=case.accumulation, max_grad_norm=case.clip or 0.0, seed=0,
            bf16=case.precision == "bf16", fp16=case.precision == "fp16", gradient_checkpointing=case.checkpointing,
            report_to=[], disable_tqdm=True,
            eval_strategy="steps" if case.evaluate else "no", eval_steps=1,
            logging_steps=STEPS if case.logged else 1, dataloader_num_workers=0,
            save_strategy="steps" if case.stop_after else "no", save_steps=case.stop_after or 1,
        )  # fmt: skip
        optimizer = optimizer_for(model)
        constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        run = (OwnLoss if case.own_loss else Penalised)(
            model=model, args=arguments, train_dataset=Rows(), eval_dataset=Rows(4), optimizers=(optimizer, constant),
            penalty={value: strength_for(case, first), **options(case)}, callbacks=[_stop_after(end)],
            compute_loss_func=token_sum if case.loss_function else None,
        )  # fmt: skip
        use_scaler(run.accelerator, case)
        run.train(resume_from_checkpoint=str(folder / f"checkpoint-{first}") if first else None)
    if case.logged:
        (row,) = [row for row in run.state.log_history if "tacit/penalty" in row]
        return logged_numbers(*(row[f"tacit/{name}"] for name in ("penalty", "gradient_share", "penalised_share")))
    return weights(model)


def _stop_after(steps: int) -> Any:
    from transformers import TrainerCallback

    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            control.should_training_stop |= state.global_step >= steps

    return Stop()


TRAINERS: dict[str, tuple[str, Callable[[Case, Path], Weights]]] = {
    "plain": ("plain loop", plain),
    "lightning_automatic": ("Lightning, automatic", lightning_automatic),
    "lightning_manual": ("Lightning, manual", lightning_manual),
    "fabric": ("Lightning Fabric", fabric),
    "trainer": ("Transformers `Trainer`", trainer),
    "accelerate": ("accelerate", accelerate),
}
