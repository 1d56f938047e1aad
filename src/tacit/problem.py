"""A `Problem`: a model, a loss and fixed minibatches, as pure functions of the parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from tacit._util import tree
from tacit._util.errors import InputError
from tacit._util.tree import Tree
from tacit.batching import Remainder, batches_per_epoch

LossFunction = Callable[[Tensor, Tensor], Tensor]


class Problem:
    """C, Ĉₖ and Cⱼ with their gradients, for one model, one loss and one fixed partition into minibatches.

    C(ω) = (1/N) Σⱼ Cⱼ(ω),   Ĉₖ(ω) = mean of Cⱼ over minibatch k,   each plus (μ/2)‖ω‖² with `weight_decay` μ.

    `dataset` is a pair (inputs, targets) of tensors or arrays, or a torch Dataset of such pairs; the loss
    `loss_fn(outputs, targets)` is a mean over its examples. `batches` gives the minibatches as index sequences; without
    it examples are taken in the order of the dataset. Parameters are dictionaries of tensors; every method takes one,
    or uses the model's own values at construction. The model itself is never changed: buffers are copied, so batch norm
    in training mode uses batch statistics and leaves its running ones alone.

    It is not a trainer, and it refuses models whose loss draws random numbers or changes between two evaluations
    (dropout).

    >>> inputs, targets = torch.arange(4.0).reshape(4, 1), torch.zeros(4, 1)
    >>> problem = Problem(nn.Linear(1, 1), nn.functional.mse_loss, (inputs, targets), batch_size=2)
    >>> problem.batches_per_epoch
    2
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFunction,
        dataset: Any,
        *,
        batch_size: int | None = None,
        batches: Sequence[Sequence[int] | Tensor] | None = None,
        remainder: Remainder = "refuse",
        weight_decay: float = 0.0,
        dtype: torch.dtype | None = None,
    ) -> None:
        if not callable(loss_fn):
            raise InputError(f"loss_fn is a {type(loss_fn).__name__}; expected a function of (outputs, targets).")
        inputs, targets = _as_tensors(dataset)
        if not (math.isfinite(weight_decay) and weight_decay >= 0):
            raise InputError(f"weight_decay={weight_decay}; expected a finite number of at least 0.")
        self.dtype = dtype
        self.inputs, self.targets = self._cast(inputs), self._cast(targets)
        self.model, self.loss_fn, self.weight_decay = model, loss_fn, float(weight_decay)
        self.parameters: Tree = {
            name: self._cast(value.detach().clone()) for name, value in model.named_parameters() if value.requires_grad
        }
        if not self.parameters:
            raise InputError("the model has no trainable parameters; expected at least one with requires_grad=True.")
        constants = [item for item in model.named_parameters() if not item[1].requires_grad]
        self._constants: Tree = {
            name: self._cast(value.detach().clone()) for name, value in [*constants, *model.named_buffers()]
        }
        self.train_size = len(self.inputs)
        self.batches = self._make_batches(batch_size, batches, remainder)
        self._check_loss()

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.dtype) if self.dtype is not None and tensor.is_floating_point() else tensor

    def _make_batches(
        self, batch_size: int | None, batches: Sequence[Sequence[int] | Tensor] | None, remainder: Remainder
    ) -> tuple[Tensor, ...]:
        if (batch_size is None) == (batches is None):
            raise InputError("give exactly one of batch_size and batches.")
        if batch_size is not None:
            updates = batches_per_epoch(self.train_size, batch_size, remainder=remainder)
            return torch.arange(self.train_size).split(batch_size)[:updates]
        assert batches is not None
        made = tuple(torch.as_tensor(batch, dtype=torch.long) for batch in batches)
        sizes = [len(batch) for batch in made]
        if 0 in sizes:
            raise InputError(f"batches have sizes {sizes}; expected at least one example in each.")
        seen = torch.cat(made).tolist() if made else []
        if len(set(seen)) != len(seen) or not seen or min(seen) < 0 or max(seen) >= self.train_size:
            raise InputError(
                f"batches hold {len(seen)} indices, {len(set(seen))} of them distinct; "
                f"expected each example of 0..{self.train_size - 1} at most once."
            )
        return made

    def _check_loss(self) -> None:
        """One evaluation each: scalar, finite, the same twice, and a mean rather than a sum."""
        batch = self.batches[0]
        with torch.no_grad():
            before = _random_states()
            once = self._first_loss(batch)
            if not all(map(torch.equal, before, _random_states())):
                raise InputError(
                    "the loss draws random numbers (dropout, noise?); expected a deterministic model. "
                    "Call model.eval() or remove the random layers."
                )
            twice = self.loss(self.parameters, batch)
            if once.shape != ():
                raise InputError(f"the loss has shape {tuple(once.shape)}; expected a scalar: use reduction='mean'.")
            if not torch.isfinite(once):
                raise InputError(f"the loss of the first minibatch is {once.item()}; expected a finite number.")
            if not torch.equal(once, twice):
                raise InputError(
                    "the loss changed between two evaluations of the same minibatch (dropout?); expected a "
                    "deterministic model. Call model.eval() or remove the random layers."
                )
            doubled = self.loss(self.parameters, torch.cat([batch, batch]))
            decay = 0.5 * self.weight_decay * tree.squared_norm(self.parameters)
            # No absolute tolerance: it would call every tiny mean a sum.
            if torch.isclose(doubled - decay, 2 * (once - decay), rtol=1e-3, atol=0.0) and once - decay != 0:
                raise InputError(
                    "the loss doubles when its minibatch is repeated, so it is a sum; expected a mean over examples. "
                    "Use reduction='mean'."
                )

    def _first_loss(self, batch: Tensor) -> Tensor:
        """The loss; where torch stumbles over precisions, say which ones meet."""
        try:
            return self.loss(self.parameters, batch)
        except RuntimeError as error:
            own = {value.dtype for value in self.parameters.values() if value.is_floating_point()}
            data = {value.dtype for value in (self.inputs, self.targets) if value.is_floating_point()}
            if len(own | data) < 2:
                raise
            names = [", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds)) for kinds in (own, data)]
            raise InputError(
                f"the model is in {names[0]} and the data in {names[1]}; expected one precision. "
                "Say dtype=torch.float64, or convert one of them."
            ) from error

    # -- sizes ----------------------------------------------------------------------------------------------------
    @property
    def batches_per_epoch(self) -> int:
        """m."""
        return len(self.batches)

    @property
    def batch_size(self) -> int:
        """B; refuses when minibatches differ in size."""
        sizes = {len(batch) for batch in self.batches}
        if len(sizes) != 1:
            raise InputError(f"minibatches have sizes {sorted(sizes)}; expected one size here.")
        return sizes.pop()

    # -- losses ---------------------------------------------------------------------------------------------------
    def loss(self, parameters: Mapping[str, Tensor], examples: Tensor) -> Tensor:
        """Mean loss over the given examples, plus (μ/2)‖ω‖²: the one function that everything else is made of."""
        value = self.loss_fn(self.outputs(parameters, examples), self.targets[examples])
        if not isinstance(value, Tensor):
            raise InputError(
                f"loss_fn returned a {type(value).__name__}; expected a scalar tensor that torch can differentiate. "
                "Leave out .item() and float()."
            )
        if self.weight_decay:
            value = value + 0.5 * self.weight_decay * tree.squared_norm(parameters)
        return value

    def outputs(self, parameters: Mapping[str, Tensor], examples: Tensor) -> Tensor:
        """What the model says about the given examples."""
        constants = {name: value.clone() for name, value in self._constants.items()}  # batch norm writes into them
        return functional_call(self.model, {**parameters, **constants}, (self.inputs[examples],))

    def full_loss(self, parameters: Mapping[str, Tensor] | None = None) -> Tensor:
        """C(ω), the mean over all N examples."""
        return self.loss(self._or_own(parameters), torch.arange(self.train_size))

    def minibatch_loss(self, k: int, parameters: Mapping[str, Tensor] | None = None) -> Tensor:
        """Ĉₖ(ω)."""
        return self.loss(self._or_own(parameters), self.batches[k])

    def example_loss(self, j: int, parameters: Mapping[str, Tensor] | None = None) -> Tensor:
        """Cⱼ(ω)."""
        return self.loss(self._or_own(parameters), torch.tensor([j]))

    # -- gradients ------------------------------------------------------------------------------------------------
    def full_gradient(self, parameters: Mapping[str, Tensor] | None = None) -> Tree:
        """∇C(ω)."""
        return torch.func.grad(self.full_loss)(self._or_own(parameters))

    def minibatch_gradient(self, k: int, parameters: Mapping[str, Tensor] | None = None) -> Tree:
        """∇Ĉₖ(ω)."""
        return torch.func.grad(self.minibatch_loss, argnums=1)(k, self._or_own(parameters))

    def example_gradient(self, j: int, parameters: Mapping[str, Tensor] | None = None) -> Tree:
        """∇Cⱼ(ω)."""
        return torch.func.grad(self.example_loss, argnums=1)(j, self._or_own(parameters))

    def gradient(self, examples: Tensor) -> Tree:
        """The gradient of the mean loss over the given examples at the model's own values, by one backward pass.

        Unlike the three above it takes models that `torch.func` refuses.
        """
        leaves = self._leaves()
        return dict(zip(leaves, self._gradients(leaves, examples), strict=True))

    def hessian_product(self, examples: Tensor, vector: Mapping[str, Tensor]) -> Tree:
        """The Hessian of that loss times a vector, by two backward passes."""
        leaves = self._leaves()
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):  # fused attention cannot be differentiated twice
            gradients = self._gradients(leaves, examples, create_graph=True)
            along = tree.total((g * vector[name]).sum() for g, name in zip(gradients, leaves, strict=True))
            if not along.requires_grad:  # a linear loss
                return tree.map_tree(torch.zeros_like, self.parameters)
            products = torch.autograd.grad(along, list(leaves.values()), materialize_grads=True)
        return dict(zip(leaves, products, strict=True))

    def _leaves(self) -> Tree:
        return {name: value.detach().requires_grad_() for name, value in self.parameters.items()}

    def _gradients(self, leaves: Tree, examples: Tensor, *, create_graph: bool = False) -> Sequence[Tensor]:
        with torch.enable_grad():
            loss = self.loss(leaves, examples)
        if not loss.requires_grad:
            raise InputError(
                "the loss does not depend on the parameters in a way torch can differentiate; expected a loss of the "
                "model's outputs without detach(), no_grad() or argmax()."
            )
        return torch.autograd.grad(loss, list(leaves.values()), create_graph=create_graph, materialize_grads=True)

    def _or_own(self, parameters: Mapping[str, Tensor] | None) -> Tree:
        return self.parameters if parameters is None else dict(parameters)


def _random_states() -> list[Tensor]:
    """What torch's global generators are at; drawing a number changes it."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [])]


def _as_tensors(dataset: Any) -> tuple[Tensor, Tensor]:
    indexed = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    sequence = isinstance(dataset, (tuple, list))
    if sequence and len(dataset) == 2 and all(isinstance(part, (Tensor, np.ndarray)) for part in dataset):
        inputs, targets = (torch.as_tensor(part) for part in dataset)
    elif indexed and not sequence and not isinstance(dataset, (str, Mapping)):
        if len(dataset) == 0:
            raise InputError("the dataset is empty; expected at least one example.")
        pairs = [_example(dataset, index) for index in range(len(dataset))]
        inputs = _stacked([pair[0] for pair in pairs], "input")
        targets = _stacked([pair[1] for pair in pairs], "target")
    else:
        remedy = " Use its .dataset." if hasattr(dataset, "dataset") else ""
        raise InputError(
            f"dataset is a {type(dataset).__name__}; expected a pair (inputs, targets) of tensors or a torch Dataset."
            f"{remedy}"
        )
    if len(inputs) != len(targets):
        raise InputError(f"dataset has {len(inputs)} inputs and {len(targets)} targets; expected as many of each.")
    if len(inputs) == 0:
        raise InputError("the dataset is empty; expected at least one example.")
    return inputs, targets


def _example(dataset: Any, index: int) -> Sequence[Any]:
    try:
        found = dataset[index]
    except Exception as error:  # somebody's own code: it may raise anything
        raise InputError(
            f"the dataset raised {type(error).__name__} at example {index}: {error}; expected a pair (input, target)."
        ) from error
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        what = f"{len(found)} parts" if isinstance(found, (tuple, list)) else f"the type {type(found).__name__}"
        raise InputError(
            f"example {index} of the dataset has {what}; expected a pair (input, target). "
            "Wrap the dataset in one that returns pairs."
        )
    return found


def _stacked(parts: list[Any], name: str) -> Tensor:
    tensors = []
    for index, part in enumerate(parts):
        try:
            tensors.append(torch.as_tensor(part))
        except (TypeError, ValueError, RuntimeError):
            raise InputError(
                f"the {name} of example {index} is a {type(part).__name__}; expected a tensor, an array or a number."
            ) from None
        if tensors[-1].shape != tensors[0].shape:
            raise InputError(
                f"the {name} of example {index} has shape {tuple(tensors[-1].shape)} and that of example 0 "
                f"{tuple(tensors[0].shape)}; expected one shape. Pad or crop them."
            )
    return torch.stack(tensors)
