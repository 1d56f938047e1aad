"""What every trainer must reach: cases, a tiny model, its data, and a plain loop with the penalty in other algebra.

Nothing of tacit is imported here. In float64 the gradient of (λ/4)‖∇Ĉ‖² is (λ/2)∇²Ĉ·∇Ĉ, the derivative of the gradient
along itself, by forward-mode differentiation. Under autocast that would round differently, so there the squared norm is
differentiated by a second backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

STEPS, BATCH, TOKENS, WORDS = 5, 2, 6, 19
RATE, MOMENTUM = 0.01, 0.9
INITIAL_SCALE = 2.0**10  # of the gradient scaler: small enough that no step is skipped
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Case:
    """One way to train. `stop_after`: the step after which training stops and goes on from a checkpoint."""

    name: str
    title: str
    accumulation: int = 1
    clip: float | None = None
    precision: str = "64"
    world: int = 1
    stop_after: int | None = None
    lora: bool = False
    checkpointing: bool = False
    evaluate: bool = False
    method: str = "auto"
    unequal_lengths: bool = False
    token_weights: bool = False  # accumulated batches count by their tokens; otherwise equally
    own_loss: bool = False  # half of the model's loss, and a term of its outputs
    loss_function: bool = False  # of one's own, which only divides by a count of tokens, where a trainer takes one
    cosine: bool = False  # λ goes to 0 along a cosine over the optimizer steps
    every: int = 1
    second_strength: float | None = None  # a number, and another one from the checkpoint on
    logged: bool = False  # compares what is logged of the penalty, not weights
    pass_scaler: bool = True  # where the user passes it
    micro_batch_size: int | None = None
    sampled: int | None = None  # the penalty of so many micro-batches, or of so many accumulated batches; rows of SAM
    sam: bool = False  # sharpness-aware minimization in place of the penalty: λ of each step is its radius

    @property
    def tolerance(self) -> float:
        """Of relative differences: rounding of float64, of the float32 that trainers log in, or of float32 weights."""
        if self.logged:
            return 1e-6
        return 1e-12 if self.precision == "64" else 1e-5


CASES = {
    case.name: case
    for case in (
        Case("accumulation", "accumulation 4", accumulation=4),
        Case("clipping", "clipping", clip=0.05),
        Case("bf16", "bf16 autocast", precision="bf16"),
        Case("scaler", "float16, GradScaler", precision="fp16"),
        Case("ddp", "DDP, 2 processes", world=2),
        Case("resume", "resume", stop_after=3),
        Case("lora", "LoRA", lora=True),
        Case("checkpointing", "gradient checkpointing", checkpointing=True),
        Case("evaluation", "evaluation between", evaluate=True),
        Case("gram", "method `gram`, accumulation 2, DDP", accumulation=2, world=2, method="gram"),
        Case("tokens", "unequal lengths, accumulation 2", accumulation=2, unequal_lengths=True, token_weights=True),
        Case("own_loss", "own loss, of the outputs too", own_loss=True),
        Case(
            "loss_function",
            "loss that divides by a count, accumulation 2",
            accumulation=2,
            unequal_lengths=True,
            token_weights=True,
            loss_function=True,
        ),
        Case("new_strength", "resumed with another strength", stop_after=3, second_strength=0.4),
        Case("schedule", "cosine of λ, `every=2`, accumulation 4", accumulation=4, cosine=True, every=2),
        Case(
            "logged",
            "logged numbers, `every=2`, accumulation 4",
            accumulation=4,
            every=2,
            method="double_backward",
            logged=True,
        ),
        Case("sampled", "1 of 2 rows sampled, accumulation 2, DDP", 2, world=2, micro_batch_size=1, sampled=1),
        Case("sampled_calls", "2 of 4 accumulated batches sampled", 4, sampled=2),
        Case(
            "sampled_tokens",
            "1 of 2 rows sampled, unequal lengths, accumulation 2",
            accumulation=2,
            unequal_lengths=True,
            token_weights=True,
            micro_batch_size=1,
            sampled=1,
        ),
        Case("sam", "SAM, accumulation 2", 2, sam=True),
        Case("sam_sampled", "SAM from 1 of 2 rows, accumulation 2, DDP", 2, world=2, sampled=1, sam=True),
        Case("no_scaler", "float16, GradScaler, no `scaler=`", precision="fp16", pass_scaler=False),
        Case(
            "together",
            "all in float64 at once",
            accumulation=2,
            clip=0.05,
            world=2,
            stop_after=3,
            lora=True,
            checkpointing=True,
            evaluate=True,
        ),
    )
}


def falling(step: int) -> float:
    """λ of each optimizer step: it falls, so that a trainer which loses or repeats one is seen."""
    return 0.2 / (1 + step)


def cosine(step: int) -> float:
    return 0.1 * (1 + math.cos(math.pi * step / STEPS))


def strength_for(case: Case, first: int = 0) -> float | Callable[[int], float]:
    """The `strength=` of a start of the program that goes on at this optimizer step."""
    if case.second_strength is not None:
        return case.second_strength if first else 0.1
    return cosine if case.cosine else falling


def applied(case: Case, step: int) -> float:
    """λ of an optimizer step: `every=k` puts k times the strength on every k-th step."""
    first = step if case.stop_after is not None and step >= case.stop_after else 0
    given = strength_for(case, first)
    strength = given(step) if callable(given) else given
    return 0.0 if step % case.every else case.every * strength


def loss_of(case: Case, outputs: Any) -> Tensor:
    loss: Tensor = outputs["loss"]
    return 0.5 * loss + 0.02 * outputs["logits"].square().mean() if case.own_loss else loss


def token_loss(
    logits: Tensor, labels: Tensor, vocab_size: int, num_items_in_batch: Any = None, **unused: Any
) -> Tensor:
    """The loss of Transformers' causal language models, without its rounding to float32."""
    shifted = F.pad(labels, (0, 1), value=-100)[..., 1:].reshape(-1)
    how = "mean" if num_items_in_batch is None else "sum"
    loss = F.cross_entropy(logits.reshape(-1, vocab_size), shifted, ignore_index=-100, reduction=how)
    return loss if num_items_in_batch is None else loss / num_items_in_batch


def make_model(case: Case, *, seed: int = 0, plain: bool = False) -> nn.Module:
    """A random GPT-2 of two layers and width 8, with adapters of rank 2 where the case asks for LoRA.

    `plain`: without fused attention, and without inputs that require a gradient, for forward-mode differentiation.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.random.fork_rng():
        torch.manual_seed(0 if case.lora else seed)  # checkpoints of LoRA hold the adapters only
        config = GPT2Config(
            vocab_size=WORDS, n_positions=TOKENS, n_embd=8, n_layer=2, n_head=2, initializer_range=0.3, use_cache=False,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
            **({"attn_implementation": "eager"} if plain else {}),
        )  # fmt: skip
        model: Any = GPT2LMHeadModel(config)
        model.loss_function, model.loss_type = token_loss, "ForCausalLM"  # by the type Trainer counts tokens
        if case.lora:
            from peft import LoraConfig, get_peft_model

            torch.manual_seed(seed)
            if not plain:
                model.enable_input_require_grads()
            adapters = LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False)
            model = get_peft_model(model, adapters)
    return model.double() if case.precision == "64" else model.float()


def examples(case: Case) -> dict[str, Tensor]:
    """All examples of the five steps in the order of training: step, accumulated batch, process, place in the batch."""
    count = STEPS * case.accumulation * case.world * BATCH
    numbers = torch.Generator().manual_seed(1)
    inputs = torch.randint(0, WORDS, (count, TOKENS), generator=numbers)
    labels = inputs.clone()
    if case.unequal_lengths:
        for row, length in enumerate(torch.randint(2, TOKENS + 1, (count,), generator=numbers).tolist()):
            labels[row, length:] = -100
    return {"input_ids": inputs, "labels": labels}


def batches(case: Case, *, rank: int = 0) -> list[dict[str, Tensor]]:
    """The batches of one process; `accumulation` of them make a step."""
    whole = examples(case)
    parts = [
        {name: tensor[i : i + BATCH] for name, tensor in whole.items()} for i in range(0, len(whole["labels"]), BATCH)
    ]
    return parts[rank :: case.world]


def groups(case: Case, *, rank: int = 0) -> Iterator[list[dict[str, Tensor]]]:
    """The batches of each step."""
    own = batches(case, rank=rank)
    return iter([own[i : i + case.accumulation] for i in range(0, len(own), case.accumulation)])


def items(batch: Mapping[str, Tensor]) -> int:
    """Tokens that are predicted: not the first, and not those without a label."""
    return int(batch["labels"][:, 1:].ne(-100).sum())


def optimizer_for(model: nn.Module) -> torch.optim.SGD:
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.SGD(trainable, lr=RATE, momentum=MOMENTUM)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters() if tensor.requires_grad}


def expected(case: Case, *, factor: float = 1.0) -> dict[str, Tensor]:
    """Weights after the five steps of a plain loop in one process, with `factor` times the penalty.

    Of a case whose log is compared: the mean over batches with a penalty of what `logged_numbers` names.
    """
    model = make_model(case, plain=case.precision == "64")
    optimizer, seen = optimizer_for(model), []
    for step, parts in enumerate(zip(*[groups(case, rank=rank) for rank in range(case.world)], strict=True)):
        optimizer.zero_grad()
        tokens = sum(items(batch) for part in parts for batch in part)
        for rank, part in enumerate(parts):
            for place, batch in enumerate(part):
                share = items(batch) / tokens if case.token_weights else 1 / (case.accumulation * case.world)
                piece, times = sample(case, batch, rank=rank, step=step, place=place)
                strength = factor * times * applied(case, step)
                seen.append((applied(case, step), _add_gradient(model, batch, piece, case, strength, share)))
        if case.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), case.clip)
        optimizer.step()
    if not case.logged:
        return weights(model)
    penalised = [numbers for strength, numbers in seen if strength]
    penalty, share = (sum(each) / len(penalised) for each in zip(*penalised, strict=True))
    return logged_numbers(penalty, share, len(penalised) / len(seen))


def sample(
    case: Case, batch: dict[str, Tensor], *, rank: int, step: int, place: int
) -> tuple[dict[str, Tensor], float]:
    """The rows whose penalty, or direction, this batch has, and how often it counts."""
    from tacit.penalty.pieces import drawn_rows  # what is drawn, not what is made of it

    if case.sampled is None:
        return batch, 1.0
    if case.micro_batch_size is None and not case.sam:
        chosen = drawn_rows(case.accumulation, case.sampled, seed=0, worker=rank, call=step).tolist()
        return batch, case.accumulation / case.sampled if place in chosen else 0.0
    call = step * case.accumulation + place
    rows = drawn_rows(BATCH, case.sampled * (case.micro_batch_size or 1), seed=0, worker=rank, call=call)
    return {name: tensor[rows] for name, tensor in batch.items()}, 1.0


def logged_numbers(penalty: Any, gradient_share: Any, penalised_share: Any) -> dict[str, Tensor]:
    """What is compared of a log: the penalty on the scale of the loss, and the two shares."""
    found = {"penalty": penalty, "gradient_share": gradient_share, "penalised_share": penalised_share}
    return {name: torch.as_tensor(value, dtype=torch.float64) for name, value in found.items()}


def _add_gradient(
    model: nn.Module,
    batch: dict[str, Tensor],
    piece: dict[str, Tensor],
    case: Case,
    strength: float,
    share: float,
) -> tuple[float, float]:
    """That of the batch, with the penalty of the piece. Return: (λ/4)‖∇Ĉ‖², and ‖(λ/2) ∇²Ĉ·∇Ĉ‖ / ‖∇Ĉ‖."""
    trainable = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
    rule = by_forward_mode if case.precision == "64" else by_second_pass
    if case.sam:
        gradients, plain = at_moved_weights(model, trainable, piece, batch, case, radius=strength)
    else:
        gradients, plain = rule(model, trainable, piece, case, strength)
    if piece is not batch and not case.sam:
        _, whole = rule(model, trainable, batch, case, 0.0)
        gradients = {name: whole[name] + gradients[name] - plain[name] for name in whole}
    for name, tensor in trainable.items():
        part = share * gradients[name]
        tensor.grad = part if tensor.grad is None else tensor.grad + part
    norm = float(sum(part.square().sum() for part in plain.values()))
    extra = float(sum((gradients[name] - plain[name]).square().sum() for name in plain))
    return strength / 4 * norm, (extra / norm) ** 0.5


Gradients = tuple[dict[str, Tensor], dict[str, Tensor]]  # with the penalty, and without


def by_forward_mode(
    model: nn.Module, trainable: dict[str, Tensor], batch: dict[str, Tensor], case: Case, strength: float
) -> Gradients:
    def loss(values: dict[str, Tensor]) -> Tensor:
        return loss_of(case, functional_call(model, values, (), dict(batch)))

    values = {name: tensor.detach() for name, tensor in trainable.items()}
    gradient = grad(loss)(values)
    _, along = jvp(grad(loss), (values,), (gradient,))
    return {name: gradient[name] + strength / 2 * along[name] for name in values}, gradient


def at_moved_weights(
    model: nn.Module,
    trainable: dict[str, Tensor],
    piece: dict[str, Tensor],
    batch: dict[str, Tensor],
    case: Case,
    *,
    radius: float,
) -> Gradients:
    """Sharpness-aware minimization: the gradient of the whole batch at ω + ρ g/‖g‖, and g, of the piece."""

    def gradient(values: dict[str, Tensor], batch: dict[str, Tensor]) -> dict[str, Tensor]:
        values = {name: tensor.detach().requires_grad_() for name, tensor in values.items()}
        half = DTYPES.get(case.precision, torch.bfloat16)
        with torch.autocast("cpu", half, enabled=case.precision in DTYPES):
            loss = loss_of(case, functional_call(model, values, (), dict(batch)))
        scale = INITIAL_SCALE if case.precision == "fp16" else 1.0
        found = torch.autograd.grad(scale * loss, list(values.values()))
        return {name: part / scale for name, part in zip(values, found, strict=True)}

    direction = gradient(trainable, piece)
    length = sum(part.square().sum() for part in direction.values()) ** 0.5
    moved = {name: tensor.detach() + radius / length * direction[name] for name, tensor in trainable.items()}
    return gradient(moved, batch), direction


def by_second_pass(
    model: nn.Module, trainable: dict[str, Tensor], batch: dict[str, Tensor], case: Case, strength: float
) -> Gradients:
    half = DTYPES.get(case.precision, torch.bfloat16)
    with torch.autocast("cpu", half, enabled=case.precision in DTYPES), sdpa_kernel(SDPBackend.MATH):
        loss = loss_of(case, model(**batch))
    # float16 loses small numbers: the scaler's factor keeps them, and is divided out in float32
    scale = INITIAL_SCALE if case.precision == "fp16" else 1.0
    found = torch.autograd.grad(scale * loss, list(trainable.values()), create_graph=True)
    norm = sum((part / scale).square().sum() for part in found)
    finished = torch.autograd.grad(scale * (loss + strength / 4 * norm), list(trainable.values()))
    plain = {name: (part / scale).detach() for name, part in zip(trainable, found, strict=True)}
    return {name: part / scale for name, part in zip(trainable, finished, strict=True)}, plain


def difference(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    """The largest, over parameters, of ‖found − wanted‖ / ‖wanted‖."""
    assert set(found) == set(wanted), sorted(set(found) ^ set(wanted))
    return max(float((found[name] - wanted[name]).norm() / wanted[name].norm()) for name in wanted)
