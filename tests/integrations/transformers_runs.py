"""Short trainings of tiny language models in Transformers' `Trainer`, and the same by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import tacit.transformers

# Weights in float32: rounding of sums in another order.
CLOSE = 1e-5

STRENGTH, RATE, WORDS, TOKENS = 0.5, 0.1, 11, 6


def gpt2(**settings: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=TOKENS, n_embd=8, n_layer=1, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, initializer_range=0.3, bos_token_id=0, eos_token_id=0, use_cache=False, **settings,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def llama() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=WORDS, max_position_embeddings=TOKENS, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, intermediate_size=12, initializer_range=0.3, use_cache=False, bos_token_id=0,
        eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def rows(count: int = 8) -> list[dict[str, Tensor]]:
    """Unequal lengths: the labels after the end of a sequence are not predicted."""
    numbers = torch.Generator().manual_seed(1)
    inputs = torch.randint(0, WORDS, (count, TOKENS), generator=numbers)
    lengths = torch.randint(2, TOKENS + 1, (count,), generator=numbers)
    labels = torch.where(torch.arange(TOKENS) < lengths[:, None], inputs, -100)
    return [{"input_ids": one, "labels": other} for one, other in zip(inputs, labels, strict=True)]


def train(
    model: Any, folder: Path, *, kind: Any = None, penalty: Any = None, callback: Any = None, **settings: Any
) -> Any:
    from torch.utils.data import SequentialSampler

    class InOrder(kind or transformers.Trainer):
        def _get_train_sampler(self, *arguments: Any, **named: Any) -> Any:
            return SequentialSampler(self.train_dataset)

    more = {} if penalty is None else {"penalty": penalty}
    more |= {name: settings.pop(name) for name in ("compute_loss_func", "model_init") if name in settings}
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), use_cpu=True, per_device_train_batch_size=2, report_to=[], disable_tqdm=True,
        **{"max_steps": 2, "gradient_accumulation_steps": 2, "max_grad_norm": 0.0, "save_strategy": "no", **settings},
    )  # fmt: skip
    optimizers = (None, None)
    if "model_init" not in more:
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        optimizers = (optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0))
    trainer = InOrder(model=model, args=arguments, train_dataset=rows(), optimizers=optimizers, **more)
    if callback is not None:
        trainer.add_callback(callback(trainer))
    trainer.train()
    return trainer


class Penalised(tacit.transformers.PenaltyMixin, transformers.Trainer):
    pass


@dataclass(frozen=True)
class Seen:
    """What one micro-batch has: its optimizer step, its weight w, and at strength λ the penalty and its gradient."""

    step: int
    weight: float
    loss: float
    strength: float
    penalty: float
    gradient_share: float


def token_mean(model: Any, inputs: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    logits = model(input_ids=inputs).logits[:, :-1].reshape(-1, WORDS)
    wanted = labels[:, 1:].reshape(-1)
    return nn.functional.cross_entropy(logits, wanted, ignore_index=-100, label_smoothing=smoothing)


def by_hand(
    model: Any,
    *,
    strength: float | Callable[[int, int], float] = STRENGTH,
    loss_of: Callable[[Any, Tensor, Tensor], Tensor] = token_mean,
    weight_of: Callable[[Tensor, list[Tensor]], float] | None = None,
    steps: int = 2,
    accumulation: int = 2,
    counts_first_label: bool = False,
) -> list[Seen]:
    """Σ w (Ĉ + (λ/4)‖∇Ĉ‖²), w = (tokens that a batch predicts) / (tokens that Trainer counts in the step).

    A function `strength` gets the optimizer step and the number of the micro-batch; `weight_of` the labels of a batch
    and those of all batches of its step.
    """

    def tokens(labels: Tensor, step: list[Tensor]) -> float:
        first = 0 if counts_first_label else 1
        return int(labels[:, 1:].ne(-100).sum()) / sum(int(each[:, first:].ne(-100).sum()) for each in step)

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer, data, seen = torch.optim.SGD(parameters, lr=RATE), rows(), []
    pairs = [
        [torch.stack([row[name] for row in data[first : first + 2]]) for name in ("input_ids", "labels")]
        for first in range(0, 2 * steps * accumulation, 2)
    ]
    for step in range(steps):
        optimizer.zero_grad()
        parts = pairs[step * accumulation : (step + 1) * accumulation]
        for place, (inputs, labels) in enumerate(parts):
            micro_batch = step * accumulation + place
            applied = strength(step, micro_batch) if callable(strength) else strength
            weight = (weight_of or tokens)(labels, [each for _, each in parts])
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
                loss = loss_of(model, inputs, labels)
            first = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
            norm = sum(part.square().sum() for part in first if part is not None)
            second = torch.autograd.grad(applied / 4 * norm, parameters, retain_graph=True, allow_unused=True)
            (weight * (loss + applied / 4 * norm)).backward()
            squared = sum(float(part.square().sum()) for part in second if part is not None)
            seen.append(
                Seen(step, weight, loss.item(), applied, applied / 4 * norm.item(), (squared / norm.item()) ** 0.5)
            )
        optimizer.step()
    return seen


def difference(left: nn.Module, right: nn.Module) -> float:
    pairs = zip(left.parameters(), right.parameters(), strict=True)
    return max(float((one - other).norm() / other.norm()) for one, other in pairs)
