"""Per-example squared norms against one float64 backward pass per example, for every kind of layer."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cases
import tacit
from tacit.diagnostics.per_example import ExampleGradients, example_losses
from tacit.layers import example_uses

COUNT = 6


def images(*shape: int) -> Tensor:
    return cases.numbers(COUNT, *shape, seed=1)


def tokens(length: int = 4) -> Tensor:
    return torch.randint(0, 7, (COUNT, length), generator=torch.Generator().manual_seed(4))


def sequence_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


class Wrapped(nn.Module):
    def __init__(self, layer: nn.Module, forward: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.call = layer, forward

    def forward(self, inputs: Tensor) -> Tensor:
        return self.call(self.layer, inputs)


class Bare(nn.Module):
    """Learned positions, a class token, a gain per feature and one for all, and a weight multiplied from the right."""

    def __init__(self) -> None:
        super().__init__()
        self.positions, self.token = nn.Parameter(torch.zeros(5, 3)), nn.Parameter(torch.zeros(1, 1, 3))
        self.gain, self.scale = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(()))
        self.mix = nn.Parameter(torch.zeros(3, 3))

    def forward(self, inputs: Tensor) -> Tensor:
        rows = torch.cat([self.token.expand(len(inputs), -1, -1), inputs], dim=1) + self.positions
        rows = torch.tanh(rows @ self.mix) * self.gain
        rows += self.token
        return (self.scale * rows).mean(1)


class TiedWithPadding(nn.Module):
    """A token without a gradient where it is looked up, and with one where the same weight gives the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 5, padding_idx=2)

    def forward(self, inputs: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.embedding(inputs)), self.embedding.weight)


class FromTheRight(nn.Module):
    """Weights multiplied from the right with more rows and with fewer rows than the Gram form is made for."""

    def __init__(self) -> None:
        super().__init__()
        self.many, self.few = nn.Parameter(torch.zeros(3, 4)), nn.Parameter(torch.zeros(36, 30))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.tanh(inputs @ self.many).flatten(1) @ self.few


class Reshaping(nn.Module):
    """Rows of all examples folded into one axis, for a linear layer and for a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.along, self.head = nn.Conv1d(1, 2, 3, padding=1), nn.Linear(10, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        count, length, width = inputs.shape
        folded = torch.tanh(self.along(inputs.reshape(count * length, 1, width))).flatten(1)
        return self.head(folded).reshape(count, length, 3).mean(1)


class TimeFirst(nn.Module):
    """The first axis is not the examples': as many steps as the check has examples, so only values can tell."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.leave(torch.tanh(self.enter(inputs.transpose(0, 1))).mean(0))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.cell(inputs)[0][:, -1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.attention(inputs, inputs, inputs)[0].mean(1))


def evaluation(model: nn.Module) -> nn.Module:
    return model.eval()


def mean_of_rows(layer: nn.Module, inputs: Tensor) -> Tensor:
    return layer(inputs).tanh().mean(1)


def mean_of_places(layer: nn.Module, inputs: Tensor) -> Tensor:
    return layer(inputs).tanh().mean((1, 2))


def circular() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), nn.Flatten())


def layer_norm_net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 3))


LAYERS: dict[str, tuple[Callable[[], nn.Module], Tensor, bool]] = {
    "linear": (cases.wide_net, images(12), True),
    "linear_on_rows": (lambda: Wrapped(nn.Linear(5, 3), mean_of_rows), images(7, 5), True),
    "linear_on_few_rows": (lambda: Wrapped(nn.Linear(9, 8), mean_of_rows), images(2, 9), True),
    "convolutions": (cases.ConvolutionNet, images(2, 4, 4), True),
    "convolution_on_few_places": (
        lambda: nn.Sequential(nn.Conv2d(8, 9, 3, padding=1), nn.Tanh(), nn.Flatten()), images(8, 2, 2), True
    ),
    "grouped_on_few_places": (
        lambda: nn.Sequential(nn.Conv2d(8, 10, 3, padding=1, groups=2), nn.Tanh(), nn.Flatten()), images(8, 2, 1), True
    ),
    "one_by_one_convolution": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 1, stride=2), nn.Tanh(), nn.Flatten()), images(2, 5, 4), True
    ),
    "convolution_of_signals": (
        lambda: nn.Sequential(
            nn.Conv1d(2, 4, 3, stride=2, padding=2, dilation=2, groups=2), nn.Tanh(), nn.Conv1d(4, 9, 5), nn.Flatten()
        ),
        images(2, 13), True,
    ),
    "circular_padding": (circular, images(2, 4, 4), True),
    "skipinit": (cases.SkipInitNet, images(2, 4, 4), True),
    "layer_norm": (layer_norm_net, images(5), True),
    "layer_norm_on_rows": (
        lambda: Wrapped(nn.Sequential(nn.LayerNorm([3, 5]), nn.Linear(5, 3)), mean_of_places),
        images(2, 3, 5), True,
    ),
    "rms_norm": (lambda: nn.Sequential(nn.Linear(5, 4), nn.RMSNorm(4), nn.Linear(4, 3)), images(5), True),
    "group_norm": (cases.group_norm_net, images(2, 4, 4), True),
    "batch_norm_in_evaluation": (lambda: evaluation(cases.batch_norm_net()), images(3), True),
    "bare_parameters": (Bare, images(4, 3), True),
    "folded_axes": (Reshaping, images(4, 5), True),
    "embedding": (lambda: cases.EmbeddingNet(tied=False), tokens(), True),
    "embedding_with_padding": (
        lambda: nn.Sequential(nn.Embedding(7, 5, padding_idx=-4), nn.Linear(5, 7)), tokens(), True
    ),
    "tied_weights_with_padding": (TiedWithPadding, tokens(), True),
    "weight_from_the_right": (FromTheRight, images(9, 3), True),
    "tied_weights": (lambda: cases.EmbeddingNet(tied=True), tokens(), True),
    "transformer": (cases.TransformerBlock, tokens(), True),
    "used_twice": (cases.Twice, images(3), False),
    "hidden_use": (cases.HiddenUse, images(3), False),
    "time_first": (TimeFirst, images(4, 3), False),
    "recurrent": (Recurrent, images(4, 3), False),
    "attention_in_one_piece": (Attention, images(4, 4), False),
    "convolution_3d": (lambda: nn.Sequential(nn.Conv3d(1, 2, 2), nn.Tanh(), nn.Flatten()), images(1, 3, 3, 3), True),
}  # fmt: skip


def make(name: str) -> tuple[tacit.Problem, bool]:
    build, inputs, by_factors = LAYERS[name]
    model = cases.spread(build()).double()
    if inputs.dtype == torch.long:
        targets, loss = tokens().flip(1), sequence_loss
    else:
        with torch.no_grad():
            classes = model(inputs).shape[-1]
        targets, loss = cases.labels(COUNT, classes, 2), F.cross_entropy
    return tacit.Problem(model, loss, (inputs, targets), batch_size=2), by_factors


def oracle(problem: tacit.Problem) -> Tensor:
    """∇Cⱼ as rows, by `backward` on a copy of the model, one example at a time."""
    model = copy.deepcopy(problem.model)
    rows = []
    for j in range(problem.train_size):
        model.zero_grad()
        problem.loss_fn(model(problem.inputs[j : j + 1]), problem.targets[j : j + 1]).backward()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
        rows.append(torch.cat([gradient.reshape(-1) for gradient in gradients]))
    return torch.stack(rows)


@pytest.mark.parametrize("name", LAYERS)
def test_squared_norms_agree_with_one_pass_per_example(name: str) -> None:
    problem, _ = make(name)
    expected = oracle(problem).square().sum(1)
    engine = ExampleGradients(problem, chunk_size=4)  # 6 examples: a whole chunk and a smaller one
    found = torch.cat([chunk.squared_norms for chunk in engine.chunks(torch.arange(COUNT))])
    assert torch.allclose(found, expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize("name", LAYERS)
def test_gradient_sums_and_products_agree_with_one_pass_per_example(name: str) -> None:
    problem, _ = make(name)
    rows = oracle(problem)
    engine = ExampleGradients(problem, chunk_size=4)
    total = sum(tacit._util.tree.flatten(chunk.gradient_sum) for chunk in engine.chunks(torch.arange(COUNT)))
    assert torch.allclose(total, rows.sum(0), rtol=1e-10, atol=1e-13)
    direction = cases.numbers(rows.shape[1], seed=9)
    tree = tacit._util.tree.unflatten(direction, problem.parameters)
    found = engine.products(torch.arange(COUNT), tree, problem.parameters)
    own = tacit._util.tree.flatten(problem.parameters)
    assert torch.allclose(found, torch.stack([rows @ direction, rows @ own], 1), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", LAYERS)
def test_factors_are_used_where_they_are_known_and_only_there(name: str) -> None:
    problem, by_factors = make(name)
    assert (set(ExampleGradients(problem).how.values()) == {"factors"}) == by_factors


def test_only_the_parameter_without_factors_is_formed() -> None:
    problem, _ = make("used_twice")
    engine = ExampleGradients(problem)
    assert [name for name, how in engine.how.items() if how != "factors"] == ["leave.weight"]


def test_small_portions_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("convolutions", "linear_on_rows", "tied_weights", "hidden_use"):
        problem, _ = make(name)
        monkeypatch.setattr(example_uses, "NUMBERS_AT_ONCE", 1)
        found = torch.cat([c.squared_norms for c in ExampleGradients(problem).chunks(torch.arange(COUNT))])
        monkeypatch.undo()
        assert torch.allclose(found, oracle(problem).square().sum(1), rtol=1e-10, atol=0), name


def test_a_changed_output_in_place_does_not_matter() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(12, 3)).double()
    problem = tacit.Problem(model, F.cross_entropy, (images(2, 4, 4), cases.labels(COUNT, 3, 2)), batch_size=2)
    found = tacit.diagnostics.example_squared_norms(problem)
    assert torch.allclose(found, oracle(problem).square().sum(1), rtol=1e-10, atol=0)


def test_the_model_and_its_gradients_are_left_alone() -> None:
    problem, _ = make("batch_norm_in_evaluation")
    before = copy.deepcopy(problem.model.state_dict())
    tacit.diagnostics.example_squared_norms(problem)
    assert all(torch.equal(value, before[name]) for name, value in problem.model.state_dict().items())
    assert all(parameter.grad is None for parameter in problem.model.parameters())


def test_losses_that_vmap_refuses_are_taken_one_by_one() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.mean() if outputs.sum() > 0 else (outputs - targets).square().mean()

    outputs, targets = images(3), images(3)
    expected = torch.stack([loss(outputs[j : j + 1], targets[j : j + 1]) for j in range(COUNT)])
    assert torch.equal(example_losses(loss, outputs, targets), expected)
