"""`gram` adds up every term of the penalty's gradient, whichever part of a model the norm leaves out.

The layers near the input are the delicate ones: their input may need a gradient although nothing below them is in the
norm, and autograd then visits fewer nodes than in an ordinary model.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cases import labels, numbers
from tacit import FactoredSGD, GradientPenalty, InputError
from tacit.layers.kinds import LinearUse
from tacit.penalty.methods import gram

ROWS = {"gram form": 4, "direct form": 40}  # a layer of 8 by 8 takes the Gram form up to 6 rows


def perceptron() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def objective_gradient(
    leaves: list[Tensor], closure: Callable[[], Tensor], strength: float, inside: list[Tensor]
) -> list[Tensor]:
    """∇(Ĉ + (λ/4)‖∇Ĉ‖²) for every leaf, with the norm over the tensors `inside`: double backward, written out."""
    loss = closure()
    gradients = torch.autograd.grad(loss, inside, create_graph=True, allow_unused=True)
    norm = sum(gradient.square().sum() for gradient in gradients if gradient is not None)
    found = torch.autograd.grad(loss + strength / 4 * norm, leaves, allow_unused=True)
    return [torch.zeros_like(leaf) if part is None else part for part, leaf in zip(found, leaves, strict=True)]


def assert_gradients(leaves: list[Tensor], expected: list[Tensor]) -> None:
    for leaf, truth in zip(leaves, expected, strict=True):
        found = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        torch.testing.assert_close(found, truth, rtol=1e-11, atol=1e-13)


def trainable(model: nn.Module) -> list[Tensor]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_inputs_that_require_a_gradient(rows: int) -> None:
    model, inputs, targets = perceptron(), numbers(rows, 8, seed=1).requires_grad_(), labels(rows, 3, 2)

    def closure() -> Tensor:
        return F.cross_entropy(model(inputs), targets)

    leaves = [*trainable(model), inputs]
    expected = objective_gradient(leaves, closure, 0.7, trainable(model))
    GradientPenalty(model, 0.7, method="gram").backward(closure)
    assert_gradients(leaves, expected)


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("exclude", [["0.*"], ["0.*", "2.*"], ["0.weight"], ["2.*"], ["4.*"], ["2.weight", "0.bias"]])
def test_excluded_layers(exclude: list[str], rows: int) -> None:
    model, inputs, targets = perceptron(), numbers(rows, 8, seed=1), labels(rows, 3, 2)

    def closure() -> Tensor:
        return F.cross_entropy(model(inputs), targets)

    penalty = GradientPenalty(model, 0.7, method="gram", exclude=exclude)
    expected = objective_gradient(trainable(model), closure, 0.7, list(penalty.parameters.values()))
    penalty.backward(closure)
    assert_gradients(trainable(model), expected)


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_an_excluded_embedding(rows: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    indices, targets = labels(rows, 5, 1), labels(rows, 3, 2)

    def closure() -> Tensor:
        return F.cross_entropy(model(indices), targets)

    expected = objective_gradient(trainable(model), closure, 0.7, trainable(model)[1:])
    GradientPenalty(model, 0.7, method="gram", exclude="0.*").backward(closure)
    assert_gradients(trainable(model), expected)


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_an_encoder_outside_the_model(rows: int) -> None:
    model, encoder, inputs, targets = perceptron(), perceptron()[:2], numbers(rows, 8, seed=1), labels(rows, 3, 2)

    def closure() -> Tensor:
        return F.cross_entropy(model(encoder(inputs)), targets)

    leaves = [*trainable(model), *trainable(encoder)]
    expected = objective_gradient(leaves, closure, 0.7, trainable(model))
    GradientPenalty(model, 0.7, method="gram").backward(closure)
    assert_gradients(leaves, expected)


class LowRank(nn.Module):
    """A frozen layer with a trainable product of two narrow ones beside it: LoRA."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.down, self.up = nn.Linear(8, 8), nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)
        self.base.requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.tanh(self.base(inputs) + self.up(self.down(inputs)))


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("of_inputs", [False, True])
def test_low_rank_adapters_on_a_frozen_embedding(rows: int, of_inputs: bool) -> None:
    """With `of_inputs` as by transformers' `enable_input_require_grads`: the frozen embedding's output is made to
    require a gradient, for the sake of checkpointing."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 8), LowRank(), LowRank(), nn.Linear(8, 3)).double()
    model[0].requires_grad_(False)
    model[3].requires_grad_(False)
    if of_inputs:
        model[0].register_forward_hook(lambda module, inputs, output: output.requires_grad_())
    indices, targets = labels(rows, 5, 1), labels(rows, 3, 2)

    def closure() -> Tensor:
        return F.cross_entropy(model(indices), targets)

    expected = objective_gradient(trainable(model), closure, 0.7, trainable(model))
    GradientPenalty(model, 0.7, method="gram").backward(closure)
    assert_gradients(trainable(model), expected)


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_a_convolution_whose_images_require_a_gradient(rows: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Conv2d(3, 3, 3), nn.Flatten(), nn.Linear(12, 3)).double()
    images, targets = numbers(rows, 2, 6, 6, seed=1).requires_grad_(), labels(rows, 3, 2)

    def closure() -> Tensor:
        return F.cross_entropy(model(images), targets)

    leaves = [*trainable(model), images]
    expected = objective_gradient(leaves, closure, 0.7, trainable(model))
    GradientPenalty(model, 0.7, method="gram").backward(closure)
    assert_gradients(leaves, expected)


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_two_views_of_inputs_that_require_a_gradient(rows: int) -> None:
    model, targets = perceptron(), labels(rows, 3, 2)
    views = [numbers(rows, 8, seed=seed).requires_grad_() for seed in (1, 5)]

    def loss(number: int) -> Tensor:
        return F.cross_entropy(model(views[number]), targets)

    losses = [loss(0), loss(1)]
    gradients = [torch.autograd.grad(each, trainable(model), create_graph=True) for each in losses]
    inner_product = sum((a * b).sum() for a, b in zip(*gradients, strict=True))
    leaves = [*trainable(model), *views]
    expected = torch.autograd.grad((losses[0] + losses[1]) / 2 + 0.7 / 4 * inner_product, leaves)
    GradientPenalty(model, 0.7, method="double_backward").backward(lambda: loss(0), second_view=lambda: loss(1))
    assert_gradients(leaves, list(expected))


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_the_factored_step_on_inputs_that_require_a_gradient(rows: int) -> None:
    model, inputs, targets = perceptron(), numbers(rows, 8, seed=1).requires_grad_(), labels(rows, 3, 2)

    def closure() -> Tensor:
        return F.cross_entropy(model(inputs), targets)

    expected = objective_gradient(trainable(model), closure, 0.7, trainable(model))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    FactoredSGD(model, lr=1.0, strength=0.7).step(closure)
    for parameter, old, truth in zip(model.parameters(), before, expected, strict=True):
        torch.testing.assert_close(old - parameter.detach(), truth, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("order", list(itertools.permutations(["norm", "input gradient", "layer"])))
@pytest.mark.parametrize("visited", [True, False])
def test_no_order_of_visits_loses_a_contribution(order: tuple[str, ...], visited: bool) -> None:
    """X receives S W + D V, D receives X Vᵀ + T Wᵀ, W receives SᵀX + DᵀT; without the second visit there is no T."""
    if not visited:
        order = tuple(visit for visit in order if visit != "input gradient")
    weight, X, D = numbers(3, 4, seed=1), numbers(5, 4, seed=2).requires_grad_(), numbers(5, 3, seed=3)
    S, T, V = numbers(5, 3, seed=4), numbers(5, 4, seed=5) * visited, numbers(3, 4, seed=6)
    use = LinearUse(weight, None)
    use.inputs, use.output_gradient = X, D
    use.start_outer_pass()
    found: dict[str, list[Tensor | None]] = {"X": [], "D": [], "W": []}
    with torch.no_grad():
        for visit in order:
            to_X = to_D = to_W = None
            if visit == "norm":
                to_X, to_D = use.pull_back(X, D, V, None)
            elif visit == "input gradient":
                to_D, to_W = use.differentiate_input_gradient(T, weight, D)
            else:
                to_X, to_W, _ = use.final_gradients(X, S, weight, (True, True, False))
            for name, part in (("X", to_X), ("D", to_D), ("W", to_W)):
                found[name].append(part)
        sums = {name: sum(part for part in parts if part is not None) for name, parts in found.items()}
        torch.testing.assert_close(sums["X"], S @ weight + D @ V)
        torch.testing.assert_close(sums["D"], X @ V.T + T @ weight.T)
        torch.testing.assert_close(sums["W"], S.T @ X + D.T @ T)
    assert use.tangents is None
    assert use.inputs is None


def deep_loss(model: nn.Module, rows: int = 40) -> Tensor:
    return F.cross_entropy(model(numbers(rows, 8, seed=1)), labels(rows, 3, 2))


def test_the_first_step_notices_a_term_that_the_outer_pass_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The norm is right here, only its gradient is not."""
    model = perceptron()
    monkeypatch.setattr(LinearUse, "pull_back", lambda *arguments: (None, None))
    with pytest.raises(InputError, match="a term is missing"):
        GradientPenalty(model, 0.7, method="gram").backward(lambda: deep_loss(model))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_every_step_notices_a_visit_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    model = perceptron()
    penalty = GradientPenalty(model, 0.7, method="gram")
    penalty.backward(lambda: deep_loss(model))
    monkeypatch.setattr(LinearUse, "final_gradients", lambda *arguments: (None, None, None))
    with pytest.raises(InputError, match="did not visit all parts of a layer"):
        penalty.backward(lambda: deep_loss(model))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gradient_that_is_all_rounding_is_no_missing_term(dtype: torch.dtype) -> None:
    """Logits of 30: the probabilities are 1 up to rounding, and so the penalty's gradient is rounding alone."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 30), nn.Tanh(), nn.Linear(30, 3))
    with torch.no_grad():
        model[2].bias.copy_(torch.tensor([30.0, 0.0, 0.0]))
    inputs, targets = numbers(40, 8, seed=1).float(), torch.zeros(40, dtype=torch.long)
    for _ in range(2):
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            GradientPenalty(model, 0.7, method="gram").backward(lambda: F.cross_entropy(model(inputs), targets))
        with torch.no_grad():
            model[2].bias[0] = 14.0  # and where a few bits are left


def test_a_loss_whose_gradient_is_constant_has_no_penalty_gradient_to_compare() -> None:
    model = nn.Linear(8, 3).double()
    GradientPenalty(model, 0.7, method="gram").backward(lambda: model(numbers(40, 8, seed=1)).mean())
    torch.testing.assert_close(model.bias.grad, torch.full((3,), 1 / 3, dtype=torch.float64))


@pytest.mark.parametrize("seed", range(8))
def test_the_rounding_of_bfloat16_is_no_missing_term(seed: int) -> None:
    """Found by the fuzz: a few tokens, a frozen layer, and gradients that differ by a rounding or two."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    model[0].bias.requires_grad_(False)
    inputs, targets = numbers(1, 3, 3, seed=seed).float(), labels(3, 3, seed)
    with torch.autocast("cpu", torch.bfloat16):
        GradientPenalty(model, 0.7, method="gram").backward(
            lambda: F.cross_entropy(model(inputs).reshape(-1, 3), targets)
        )


def test_a_gradient_of_zero_is_no_missed_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by the fuzz: by symmetry all gradients are rounding, some 1e-17, and two ways round differently."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 5), nn.Softmax(-1), nn.Linear(5, 5), nn.Softmax(-1)).double()
    inputs = numbers(40, 8, seed=1)
    plain = gram.squared_norm
    monkeypatch.setattr(gram, "squared_norm", lambda view, parameters: 1e-9 * plain(view, parameters))
    # Probabilities add up to 1, whatever the weights are.
    GradientPenalty(model, 0.7, method="gram").backward(lambda: (model(inputs).sum(-1) * 1.7).mean())
    assert all(float(parameter.grad.abs().max()) < 1e-15 for parameter in model.parameters())
