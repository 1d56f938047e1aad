"""A `Landscape`: a `Problem` seen as functions of one flat float64 vector of parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.func import grad, jvp, vmap

from tacit._util import tree
from tacit._util.errors import InputError
from tacit._util.graph import WRONG_SECOND_DERIVATIVES, nodes, operation
from tacit.problem import Problem
from tacit.theory.exact_forms import ExactForms

Field = Callable[[Tensor], Tensor]
Parameters = Mapping[str, Tensor] | Tensor | None


class Landscape:
    """Minibatch losses Ĉₖ and their derivatives at a flat vector ω, in float64 whatever the problem's own precision.

    `loss` is the mean over minibatches (1/m) Σₖ Ĉₖ, the function that SGD follows at zeroth order. It equals C when
    all minibatches have one size and cover the data, as the paper assumes; otherwise it is not C.

    >>> from tacit.theory import problems
    >>> scape = Landscape(problems.logistic(batches=4))
    >>> scape.minibatch_gradients(scape.start).shape
    torch.Size([4, 3])
    """

    def __init__(self, problem: Problem) -> None:
        if not isinstance(problem, Problem):
            raise InputError(
                f"problem is a {type(problem).__name__}; expected a tacit.Problem: a model with its loss and its data."
            )
        self.problem = _in_float64(problem)
        self.start = tree.flatten(self.problem.parameters)
        self.size = self.start.numel()
        self.batches = self.problem.batches
        self.batches_per_epoch = len(self.batches)
        self.train_size = self.problem.train_size
        self.equal_batches = len({len(batch) for batch in self.batches}) == 1
        self._require_second_derivatives()
        self.vectorizes = self._can_vectorize()
        self.separable = self._is_separable()

    def _require_second_derivatives(self) -> None:
        """Refuse by name what torch differentiates wrongly the second time, where no exact form took its place."""
        with torch.enable_grad():
            loss = self.loss_of(self.start.detach().clone().requires_grad_(), self.batches[0])
        wrong = {operation(node) for node in nodes(loss)} & WRONG_SECOND_DERIVATIVES.keys()
        if wrong:
            raise InputError(
                f"the loss uses {', '.join(sorted(wrong))}, whose second derivatives torch computes wrongly; expected "
                "torch.nn.utils.parametrizations.weight_norm or v · g/‖v‖ written out."
            )

    def _can_vectorize(self) -> bool:
        """Whether vmap takes this model: batch norm in training mode writes into buffers, which vmap refuses."""
        try:
            vmap(self.loss_of, in_dims=(0, None))(torch.stack([self.start, self.start]), self.batches[0])
        except RuntimeError:
            return False
        return True

    def _is_separable(self) -> bool:
        """Whether the mean over minibatches is the loss on all examples at once, which is cheaper to differentiate.

        Not so for unequal or dropped minibatches, nor for models that mix the examples of a minibatch.
        """
        if not (self.vectorizes and self.equal_batches and sum(map(len, self.batches)) == self.train_size):
            return False
        apart, together = self.minibatch_gradients(self.start).mean(0), grad(self.full_loss)(self.start)
        return torch.allclose(apart, together, rtol=1e-11, atol=1e-13)

    # -- one set of examples --------------------------------------------------------------------------------------
    def loss_of(self, w: Tensor, examples: Tensor) -> Tensor:
        """Mean loss over the given examples."""
        with ExactForms():
            return self.problem.loss(tree.unflatten(w, self.problem.parameters), examples)

    def gradient_of(self, w: Tensor, examples: Tensor) -> Tensor:
        """Its gradient."""
        return grad(self.loss_of)(w, examples)

    def map(self, function: Callable[..., Tensor], *stacks: Tensor) -> Tensor:
        """The function at every leading index, together where the model allows it, else one by one."""
        if self.vectorizes:
            return vmap(function)(*stacks)
        return torch.stack([function(*rows) for rows in zip(*stacks, strict=True)])

    # -- minibatches ----------------------------------------------------------------------------------------------
    def over_minibatches(self, function: Callable[..., Tensor], *stacks: Tensor) -> Tensor:
        """function(examples of minibatch k, row k of each stack) for every k, stacked."""
        if self.vectorizes and self.equal_batches:
            return vmap(function)(torch.stack(self.batches), *stacks)
        return torch.stack([function(batch, *rows) for batch, *rows in zip(self.batches, *stacks, strict=True)])

    def minibatch_losses(self, w: Tensor) -> Tensor:
        """(Ĉ₀, …, Ĉₘ₋₁), shape (m,)."""
        return self.over_minibatches(lambda examples: self.loss_of(w, examples))

    def minibatch_gradients(self, w: Tensor) -> Tensor:
        """∇Ĉₖ as rows, shape (m, d)."""
        return self.over_minibatches(lambda examples: self.gradient_of(w, examples))

    def minibatch_products(self, w: Tensor, vectors: Tensor) -> Tensor:
        """∇∇Ĉₖ vₖ as rows: minibatch k's Hessian times row k."""
        return self.over_minibatches(lambda examples, v: product(lambda p: self.loss_of(p, examples), w, v), vectors)

    def minibatch_thirds(self, w: Tensor, lefts: Tensor, rights: Tensor) -> Tensor:
        """∇³Ĉₖ[uₖ, vₖ] as rows."""
        return self.over_minibatches(
            lambda examples, u, v: product(lambda p: self.loss_of(p, examples), w, u, v), lefts, rights
        )

    # -- their mean -----------------------------------------------------------------------------------------------
    def loss(self, w: Tensor) -> Tensor:
        return self.full_loss(w) if self.separable else self.minibatch_losses(w).mean()

    def gradient(self, w: Tensor) -> Tensor:
        return grad(self.loss)(w)

    def hessian_product(self, w: Tensor, v: Tensor) -> Tensor:
        return product(self.loss, w, v)

    def third(self, w: Tensor, u: Tensor, v: Tensor) -> Tensor:
        return product(self.loss, w, u, v)

    # -- examples -------------------------------------------------------------------------------------------------
    def full_loss(self, w: Tensor) -> Tensor:
        """C, the mean over all N examples."""
        return self.loss_of(w, torch.arange(self.train_size))

    def example_gradients(self, w: Tensor) -> Tensor:
        """∇Cⱼ as rows, shape (N, d). Meaningless under batch norm, where an example has no loss of its own."""
        singles = torch.arange(self.train_size).unsqueeze(1)
        return self.map(lambda examples: self.gradient_of(w, examples), singles)


def product(loss: Field, w: Tensor, *directions: Tensor) -> Tensor:
    """∇^(k+1) loss(w)[v₁, …, v_k], a vector: reverse mode, once per direction and once more.

    Twice to three times faster than nested forward mode on small models: torch sends zero tangents through Python.
    """
    for direction in directions:
        loss = _slope(loss, direction)
    return grad(loss)(w)


def _slope(loss: Field, direction: Tensor) -> Field:
    return lambda w: grad(loss)(w) @ direction


def derivative(field: Field, w: Tensor, *directions: Tensor) -> Tensor:
    """D^k field(w)[v₁, …, v_k]: forward mode, once per direction."""
    for direction in directions:
        field = _along(field, direction)
    return field(w)


def _along(field: Field, direction: Tensor) -> Field:
    return lambda w: jvp(field, (w,), (direction,))[1]


def view(problem: Problem | Landscape, parameters: Parameters = None) -> tuple[Landscape, Tensor]:
    """The landscape of a problem, and the flat vector of parameters (the problem's own if none are given)."""
    scape = problem if isinstance(problem, Landscape) else Landscape(problem)
    if parameters is None:
        return scape, scape.start
    vector = parameters if isinstance(parameters, Tensor) else tree.flatten(parameters)
    if vector.shape != scape.start.shape:
        raise InputError(
            f"parameters have shape {tuple(vector.shape)}; expected a flat vector of {scape.size} numbers or a "
            "dictionary like problem.parameters."
        )
    return scape, vector if vector.dtype == torch.float64 else vector.to(torch.float64)


def _in_float64(problem: Problem) -> Problem:
    own = (*problem.parameters.values(), problem.inputs, problem.targets)
    if all(tensor.dtype == torch.float64 or not tensor.is_floating_point() for tensor in own):
        return problem
    twin = Problem(
        problem.model,
        problem.loss_fn,
        (problem.inputs, problem.targets),
        batches=problem.batches,
        weight_decay=problem.weight_decay,
        dtype=torch.float64,
    )
    # The model may have moved on since the problem was made: the problem's values are the ones meant.
    twin.parameters = {name: value.to(torch.float64) for name, value in problem.parameters.items()}
    return twin
