"""Per-example squared gradient norms ‖∇Cⱼ‖² of a problem in one pass, without per-example gradients where possible."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from tacit._util import tree
from tacit._util.errors import InputError
from tacit._util.rounding import CoarsestUnit
from tacit._util.tree import Tree
from tacit.diagnostics._outputs import along_examples, with_parts
from tacit.layers.example_uses import ExampleUse, portions, summary
from tacit.layers.example_watch import ExampleWatch
from tacit.problem import LossFunction, Problem

CHECKED_EXAMPLES = 4


@dataclass(frozen=True)
class Chunk:
    """Some examples: their losses Cⱼ, their ‖∇Cⱼ‖² (float64), and the sum of their gradients. No weight decay."""

    examples: Tensor
    losses: Tensor
    squared_norms: Tensor
    gradient_sum: Tree


class ExampleGradients:
    """Passes over the examples of a problem that see each example's gradient through its layers' factors.

    At construction a few examples are also differentiated alone, parameter by parameter. A parameter that disagrees, or
    that is used in an operation with no known factors, is done with `vmap(grad)`, and one that vmap refuses example by
    example; `how` says which. Weight decay is left out: it is the same vector for all examples. `mixing` is the largest
    relative difference between a minibatch's loss and the mean over its examples, with what rounding explains, if any.
    """

    def __init__(self, problem: Problem, *, chunk_size: int = 256) -> None:
        if chunk_size < 1:
            raise InputError(f"chunk_size={chunk_size}; expected at least 1.")
        self.problem, self.chunk_size = problem, chunk_size
        self.mixing: tuple[float, float] | None = None
        self.unit = 0.0  # of the least precise numbers seen so far
        self.how: dict[str, str] = dict.fromkeys(problem.parameters, "factors")
        self._check()

    # -- passes ---------------------------------------------------------------------------------------------------
    def chunks(self, examples: Tensor) -> Iterator[Chunk]:
        for some in examples.split(self.chunk_size):
            yield self._chunk(some)

    def products(self, examples: Tensor, *directions: Mapping[str, Tensor]) -> Tensor:
        """⟨∇Cⱼ, V⟩ for each example (rows) and each direction V (columns), in float64."""
        return torch.cat([self._products(some, directions) for some in examples.split(self.chunk_size)])

    def _chunk(self, examples: Tensor) -> Chunk:
        losses, uses = self._backward(examples)
        squares = torch.zeros(len(examples), dtype=torch.float64)
        total = {name: torch.zeros_like(value) for name, value in self.problem.parameters.items()}
        for name, of_parameter in uses.items():
            norms, total[name] = summary(of_parameter)
            squares += norms.double().cpu()
        for some, each in self._formed(examples):
            for name, rows in each.items():
                squares[some] += rows.flatten(1).square().sum(1).double().cpu()
                total[name] += rows.sum(0)
        return Chunk(examples, losses, squares, total)

    def _products(self, examples: Tensor, directions: tuple[Mapping[str, Tensor], ...]) -> Tensor:
        _, uses = self._backward(examples)
        found = torch.zeros(len(examples), len(directions), dtype=torch.float64)
        for name, of_parameter in uses.items():
            for use, D in of_parameter:
                for column, direction in enumerate(directions):
                    found[:, column] += use.products(D, direction[name]).double().cpu()
        for some, each in self._formed(examples):
            for name, rows in each.items():
                for column, direction in enumerate(directions):
                    found[some, column] += (rows.flatten(1) @ direction[name].reshape(-1)).double().cpu()
        return found

    # -- one backward pass, for outputs of layers only --------------------------------------------------------------
    def _backward(self, examples: Tensor) -> tuple[Tensor, dict[str, list[tuple[ExampleUse, Tensor]]]]:
        """The examples' losses, and every use by parameter with its output gradient, of the sum of the losses."""
        leaves = {name: value.detach().requires_grad_() for name, value in self.problem.parameters.items()}
        targets = self.problem.targets[examples]
        with torch.enable_grad(), CoarsestUnit() as precision, ExampleWatch(leaves, len(examples)) as watch:
            outputs = self.problem.outputs(leaves, examples)
        self.unit = max(self.unit, precision.unit)
        with torch.enable_grad():
            loss = self.problem.loss_fn(outputs, targets) * len(examples)
        for name in watch.unrecorded:
            if self.how[name] == "factors":
                self.how[name] = "vmap"
        uses = [use for use in watch.uses if self.how[use.name] == "factors"]
        # The weight and the bias of a layer have one output: asked for once.
        edges = {(use.edge.node, use.edge.output_nr): use.edge for use in uses}
        found: dict[Any, Tensor | None] = {}
        if edges:
            found = dict(zip(edges, torch.autograd.grad(loss, list(edges.values()), allow_unused=True), strict=True))
        by_parameter: dict[str, list[tuple[ExampleUse, Tensor]]] = {}
        for use in uses:
            D = found[use.edge.node, use.edge.output_nr]
            if D is not None:
                by_parameter.setdefault(use.name, []).append((use, D))
        losses = example_losses(self.problem.loss_fn, outputs, targets)
        self._compare(loss, losses)
        return losses, by_parameter

    def _compare(self, loss: Tensor, losses: Tensor) -> None:
        """Notes a loss that is not the mean over its examples: class weights, ignored labels, broadcast targets."""
        unit = max(self.unit, float(torch.finfo(loss.dtype).eps))
        mean, size = float(losses.mean()), max(float(losses.abs().mean()), 1e-300)
        difference = abs(float(loss.detach()) / len(losses) - mean)
        # As in the self-test, 1e4 units in the last place; and 100 of 1, since a loss near 0 is a rounded difference.
        if difference > 1e4 * unit * size + 100 * unit and (self.mixing is None or difference / size > self.mixing[0]):
            self.mixing = difference / size, 1e4 * unit

    # -- parameters without factors -----------------------------------------------------------------------------------
    def _formed(self, examples: Tensor) -> Iterator[tuple[slice, Tree]]:
        """Example gradients of the other parameters, a few examples at a time."""
        wanted = {name: self.problem.parameters[name] for name, how in self.how.items() if how != "factors"}
        if not wanted:
            return
        for some in portions(len(examples), sum(value.numel() for value in wanted.values())):
            yield some, self._form(wanted, examples[some])

    def _form(self, wanted: Tree, examples: Tensor) -> Tree:
        if "one by one" not in self.how.values():
            try:
                return vmap(grad(self._alone), in_dims=(None, 0))(wanted, examples)
            except RuntimeError:  # an operation that vmap does not know, or data-dependent control flow
                self.how |= dict.fromkeys(wanted, "one by one")
        rows = [self.alone(example, wanted) for example in examples]
        return {name: torch.stack([row[name] for row in rows]) for name in wanted}

    def _alone(self, some_parameters: Mapping[str, Tensor], example: Tensor) -> Tensor:
        just_it = example.unsqueeze(0)
        outputs = self.problem.outputs({**self.problem.parameters, **some_parameters}, just_it)
        return self.problem.loss_fn(outputs, self.problem.targets[just_it])

    def alone(self, example: Tensor, wanted: Mapping[str, Tensor]) -> Tree:
        """∇Cⱼ for some parameters, by an ordinary backward pass on a minibatch of one."""
        leaves = {name: value.detach().requires_grad_() for name, value in wanted.items()}
        with torch.enable_grad():
            loss = self._alone(leaves, example)
        gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        pairs = zip(leaves.items(), gradients, strict=True)
        return {name: torch.zeros_like(leaf) if found is None else found for (name, leaf), found in pairs}

    # -- the check ----------------------------------------------------------------------------------------------------
    def _check(self) -> None:
        """Sends every parameter whose factors do not give what single examples give to vmap.

        It catches what watching functions cannot: a weight used inside a custom function, examples that are not along
        the first axis, layers implemented in one piece (LSTM).
        """
        size = self.problem.train_size
        examples = torch.linspace(0, size - 1, min(CHECKED_EXAMPLES, size)).long().unique()
        singles = [self.alone(example, self.problem.parameters) for example in examples]
        dtype = singles[0][next(iter(singles[0]))].dtype
        _, uses = self._backward(examples)
        # Rounding of a sum of squares, with room for long sums; a wrong axis or a missing use is off by a factor.
        tolerance = 1e-7 if max(self.unit, torch.finfo(dtype).eps) < 1e-10 else 1e-2
        largest = max(float(tree.squared_norm(single)) for single in singles)
        for name, value in self.problem.parameters.items():
            if self.how[name] != "factors":
                continue
            norms = value.new_zeros(len(examples))
            if name in uses:
                norms, _ = summary(uses[name])
            expected = torch.stack([single[name].square().sum() for single in singles])
            scale = expected.max() + 1e-6 * largest
            if not bool(((norms - expected).abs() <= tolerance * scale).all()):
                self.how[name] = "vmap"


def example_squared_norms(problem: Problem, *, chunk_size: int = 256) -> Tensor:
    """‖∇Cⱼ‖² for every example of a problem, in float64, without its weight decay.

    >>> from torch import nn
    >>> inputs, targets = torch.eye(2), torch.zeros(2, 1)
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> problem = Problem(model, nn.functional.mse_loss, (inputs, targets), batch_size=1)
    >>> example_squared_norms(problem).tolist()
    [4.0, 4.0]
    """
    engine = ExampleGradients(problem, chunk_size=chunk_size)
    return torch.cat([chunk.squared_norms for chunk in engine.chunks(torch.arange(problem.train_size))])


def example_losses(loss_fn: LossFunction, outputs: Any, targets: Tensor) -> Tensor:
    """Cⱼ of each example, in float64: the mean loss over a minibatch of one. See `_outputs` for what outputs may be."""
    count = len(targets)
    tensors = along_examples(outputs, count)

    def alone(parts: list[Tensor], target: Tensor) -> Tensor:
        output = with_parts(outputs, count, [part.unsqueeze(0) for part in parts])
        return loss_fn(output, target.unsqueeze(0))

    try:
        return vmap(alone)(tensors, targets).detach().double().cpu()
    except RuntimeError:  # a loss that vmap does not know
        rows = [alone([tensor[j] for tensor in tensors], targets[j]) for j in range(count)]
        return torch.stack([row.detach().double().cpu() for row in rows])
