"""Curvature times gradient as the directional derivative of the gradient, by `torch.func`.

    H g = d/ds ∇Ĉ(ω + s g) at s = 0,   `jvp(grad(Ĉ), (ω,), (g,))`

Exact, with no second backward pass: for models whose backward cannot be differentiated but whose operations have
forward derivatives. The gradient comes out a second time on the way and is compared with the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp

from tacit._errors import InputError
from tacit.layers.modes import modes_on
from tacit.penalty.methods.two_pass import Views
from tacit.penalty.objective import Closure, Outcome, Task
from tacit.penalty.surroundings.compiled import uncompiled
from tacit.penalty.surroundings.refusals import UnsupportedModelError, translated
from tacit.penalty.surroundings.state import second_pass


class _Closed(nn.Module):
    """A closure as a module around its model, so that `functional_call` can put other tensors in."""

    def __init__(self, model: nn.Module, closure: Closure) -> None:
        super().__init__()
        self.model, self.closure = model, closure

    def forward(self) -> Tensor:
        return self.closure()


def backward(task: Task) -> Outcome:
    """Exact; one plain gradient and one forward-mode derivative of it."""
    with _looking_for_padding(task.model) as padded:
        views = Views(task)
    _refuse_tied_padding(views, padded)
    names = {id(parameter): name for name, parameter in task.model.named_parameters()}
    outside = [tuple(leaf.shape) for leaf in views.leaves if id(leaf) not in names]
    if outside:
        raise InputError(
            f"the loss depends on {len(outside)} trainable tensor(s) outside the model, of shape {outside[0]}; "
            "forward_over_reverse sees the model's own only. Use method='double_backward'."
        )
    products = []
    for number, closure in enumerate(task.closures):
        direction = views.directions[(number + 1) % len(task.closures)]
        moving = {id(parameter): part for parameter, part in zip(views.reached, direction, strict=True)}
        point = {f"model.{names[id(leaf)]}": leaf.detach() for leaf in views.leaves}
        tangent = {
            f"model.{names[id(leaf)]}": moving.get(id(leaf), torch.zeros_like(leaf)).detach() for leaf in views.leaves
        }
        products.append(_directional_derivative(task, views, number, closure, point, tangent))
    norm = views.inner_product()
    mean = [sum(parts[1:], parts[0]) / len(products) for parts in zip(*products, strict=True)]
    part = views.part(mean)
    views.finish(mean)
    return Outcome(views.loss(), norm, part=part)


@contextmanager
def _looking_for_padding(model: nn.Module) -> Iterator[set[nn.Embedding]]:
    """The embeddings of the model that meet their own padding index inside."""
    found: set[nn.Embedding] = set()

    def look(module: nn.Module, args: tuple[Any, ...]) -> None:
        assert isinstance(module, nn.Embedding)
        if args and isinstance(args[0], Tensor) and bool(args[0].eq(module.padding_idx or 0).any()):
            found.add(module)

    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    handles = [each.register_forward_pre_hook(look) for each in embeddings if each.padding_idx is not None]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _refuse_tied_padding(views: Views, padded: set[nn.Embedding]) -> None:
    """An embedding has no gradient at its padding index, so ∇Ĉ is not the gradient of Ĉ there, and its Jacobian is not
    symmetric: (∇∇Ĉ)ᵀ∇Ĉ, which is wanted, differs from the (∇∇Ĉ)∇Ĉ of forward mode where that row moves.
    """
    for module in padded:
        for direction in views.directions:
            for parameter, part in zip(views.reached, direction, strict=True):
                if parameter is module.weight and bool((part[module.padding_idx] != 0).any()):
                    raise InputError(
                        "an embedding with padding_idx shares its weight with a layer, and the batch has padding; "
                        "forward mode gives another gradient there. Use method='double_backward'."
                    )


def _directional_derivative(
    task: Task, views: Views, number: int, closure: Closure, point: dict[str, Tensor], tangent: dict[str, Tensor]
) -> list[Tensor]:
    closed = _Closed(task.model, closure)

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        # Batch norm writes its statistics in place, which must not land on the model's own buffers.
        buffers = {f"model.{name}": buffer.clone() for name, buffer in task.model.named_buffers()}
        value = functional_call(closed, {**parameters, **buffers}, ()).reshape(())
        return value if task.scale == 1 else task.scale * value

    with second_pass(task.model, views.starts[number], task.generators), uncompiled(), modes_on():
        try:
            gradient, derivative = jvp(grad(loss), (point,), (tangent,))[:2]
        except RuntimeError as error:
            if translated(error) is not None or isinstance(error, torch.OutOfMemoryError):
                raise
            # The first pass ran through, so it is not the closure: torch's forward derivatives of some layers fail
            # under autocast and on channels-last images.
            says = str(error).strip().split("\n")[0].split(". ")[0].rstrip(".")
            raise UnsupportedModelError(
                f"torch.func fails where a plain pass does not ({says}); forward_over_reverse cannot run the model.",
                "Use method='gram' or 'double_backward'.",
            ) from error
    if task.scale != 1:
        gradient, derivative = ({name: found[name] / task.scale for name in point} for found in (gradient, derivative))
    _check_same([gradient[name] for name in point], views.gradients[number])
    return [derivative[name] for name in point]


def _check_same(again: list[Tensor], first: list[Tensor]) -> None:
    """Rounding differs between the two passes; another dropout mask or a forgotten dependence is far larger."""
    both = zip(again, first, strict=True)
    apart, size = torch.zeros(()), torch.zeros(())
    for second, one in both:  # ‖a − b‖² from inner products: a difference would need memory of the model's size
        a, b = second.reshape(-1), one.reshape(-1)
        own = torch.dot(b, b)
        apart, size = apart + own + torch.dot(a, a) - 2 * torch.dot(a, b), size + own
    if apart > 1e-4 * size:  # a hundredth of the gradient
        raise InputError(
            "the second pass gave another gradient than the first; expected a closure that runs the whole forward pass "
            "and draws the same random numbers again (torch.func draws dropout masks of transposed tensors in another "
            "order, as in nn.TransformerEncoder). Use method='double_backward'."
        )
