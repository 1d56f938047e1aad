"""Micro-batches in one pass: what K calls of the closure give, or a loop that is announced; never anything else."""

from __future__ import annotations

import copy
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from cases import ConvolutionNet, EmbeddingNet, HiddenUse, SkipInitNet, TransformerBlock, Twice, labels, numbers, spread
from tacit import FactoredSGD, GradientPenalty
from tacit.penalty.methods import one_pass
from tacit.penalty.methods.micro_batches import MicroBatches
from tacit.studies.train.models import mlp

SIZE = 3  # of a micro-batch; batches have 12 examples
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Problem:
    model: nn.Module
    inputs: Tensor
    targets: Tensor
    loss: Loss = lambda model, x, y: F.cross_entropy(model(x), y)

    def closure(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.model, x, y)


def vectors(model: nn.Module, width: int, loss: Loss | None = None) -> Problem:
    made = spread(model).double(), numbers(12, width, seed=1), labels(12, 3, 2)
    return Problem(*made) if loss is None else Problem(*made, loss)


def images(model: nn.Module) -> Problem:
    return Problem(spread(model).double(), numbers(12, 2, 4, 4, seed=1), labels(12, 3, 2))


def of_tokens(model: nn.Module) -> Problem:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x).flatten(0, 1), y.flatten())

    return Problem(spread(model).double(), labels(48, 7, 4).reshape(12, 4), labels(48, 7, 5).reshape(12, 4), loss)


def frozen(problem: Problem, *names: str) -> Problem:
    for name, parameter in problem.model.named_parameters():
        parameter.requires_grad_(name not in names)
    return problem


def norm_net(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), norm, nn.Tanh(), nn.Linear(8, 3))


def contrastive(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    features = F.normalize(model(x), dim=-1)
    return F.cross_entropy(features @ features.T, torch.arange(len(x)))


def masked_mean(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    mask = (y != 0).double()
    return (F.cross_entropy(model(x), y, reduction="none") * mask).sum() / mask.sum().clamp_min(1)


class Positions(nn.Module):
    """Bare parameters, a scalar gate, a parameter that is expanded, and one the loss does not reach."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(5, 4), nn.Linear(4, 3)
        self.shift, self.gate, self.unused = (nn.Parameter(torch.ones(size)) for size in (4, 1, 2))
        self.token = nn.Parameter(torch.ones(1, 4))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.enter(x) + self.shift) * self.gate
        return self.leave(h + self.token.expand(len(x), -1).sin())


class Changes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        h[:, 0] = 0
        h += x[:, :1]
        return self.leave(F.relu(h, inplace=True))


def encoder() -> Problem:
    model = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    return Problem(
        spread(model).double(), numbers(12, 5, 4, seed=1), labels(12, 3, 2), lambda m, x, y: (m(x) - x).square().mean()
    )


ONE_PASS: dict[str, Callable[[], Problem]] = {
    "mlp": lambda: vectors(mlp([5, 12, 12, 3]), 5),
    "wide": lambda: vectors(mlp([5, 40, 40, 3]), 5),
    "convolution": lambda: images(ConvolutionNet()),
    "scalars": lambda: images(SkipInitNet()),
    "transformer": lambda: of_tokens(TransformerBlock()),
    "embedding": lambda: of_tokens(EmbeddingNet(tied=False)),
    "tied": lambda: of_tokens(EmbeddingNet(tied=True)),
    "used twice": lambda: vectors(Twice(), 3),
    "group norm": lambda: images(nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 3))),
    "layer norm": lambda: vectors(norm_net(nn.LayerNorm(8)), 5),
    "batch norm in evaluation mode": lambda: vectors(norm_net(nn.BatchNorm1d(8)).eval(), 5),
    "batch norm without statistics": lambda: vectors(norm_net(nn.BatchNorm1d(8, track_running_stats=False)), 5),
    "bare parameters": lambda: vectors(Positions(), 5),
    "in place": lambda: vectors(Changes(), 5),
    "encoder": encoder,
    "frozen": lambda: frozen(vectors(mlp([5, 12, 12, 3]), 5), "0.weight", "2.bias"),
    "class weights": lambda: vectors(
        mlp([5, 12, 3]), 5, lambda m, x, y: F.cross_entropy(m(x), y, weight=torch.arange(1.0, 4.0).double())
    ),
    "ignored labels": lambda: vectors(mlp([5, 12, 3]), 5, lambda m, x, y: F.cross_entropy(m(x), y, ignore_index=2)),
    "masked mean": lambda: vectors(mlp([5, 12, 3]), 5, masked_mean),
    "sum": lambda: vectors(mlp([5, 12, 3]), 5, lambda m, x, y: F.cross_entropy(m(x), y, reduction="sum")),
    "contrastive": lambda: vectors(mlp([5, 12, 3]), 5, contrastive),
}


NO_ROW_MEANS = {  # their own gradient is that of the whole batch: one pass more
    "batch norm without statistics", "class weights", "ignored labels", "masked mean", "sum", "contrastive"
}  # fmt: skip


def reference(problem: Problem, strength: float, *, inside: list[str] | None = None) -> tuple[list[Tensor], float]:
    """Ĉ + (1/K) Σₖ (λ/4)‖∇Ĉₖ‖² differentiated twice by plain autograd, micro-batch by micro-batch.

    Batch norm in training mode has no Ĉ apart from the micro-batches': it is their mean there.
    """
    model = problem.model
    leaves = list(model.parameters())
    named = dict(model.named_parameters())
    norm_of = [p for name, p in named.items() if p.requires_grad and (inside is None or name in inside)]
    whole, norms = torch.zeros((), dtype=torch.float64), 0.0
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        for x, y in zip(problem.inputs.split(SIZE), problem.targets.split(SIZE), strict=True):
            loss = problem.closure(x, y)
            gradients = torch.autograd.grad(loss, norm_of, create_graph=True, allow_unused=True)
            norm = sum(gradient.square().sum() for gradient in gradients if gradient is not None)
            own = loss if counts_batches(model) else 0.0
            whole, norms = whole + (own + strength / 4 * norm) / 4, norms + float(norm.detach()) / 4
        if not counts_batches(model):
            whole = whole + problem.closure(problem.inputs, problem.targets)
        found = torch.autograd.grad(whole, [p for p in leaves if p.requires_grad], allow_unused=True)
    filled = iter(found)
    return [next(filled) if p.requires_grad else None for p in leaves], norms


def counts_batches(model: nn.Module) -> bool:
    return any(isinstance(m, nn.BatchNorm1d) and m.training and m.track_running_stats for m in model.modules())


def curvature_of(problem: Problem, *, inside: list[str] | None = None) -> float:
    """(1/K) Σₖ ⟨gₖ, Hₖ gₖ⟩ over the parameters in the norm: half of ∇‖gₖ‖² along gₖ, by plain autograd."""
    named = problem.model.named_parameters()
    norm_of = [p for name, p in named if p.requires_grad and (inside is None or name in inside)]
    pieces = list(zip(problem.inputs.split(SIZE), problem.targets.split(SIZE), strict=True))
    whole = 0.0
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        for x, y in pieces:
            first = torch.autograd.grad(problem.closure(x, y), norm_of, create_graph=True, materialize_grads=True)
            norm = sum(gradient.square().sum() for gradient in first)
            second = torch.autograd.grad(norm, norm_of, materialize_grads=True)
            whole += sum(float((g.detach() * h).sum()) for g, h in zip(first, second, strict=True)) / 2 / len(pieces)
    return whole


def assert_exact(problem: Problem, penalty: GradientPenalty, *, inside: list[str] | None = None) -> None:
    expected, norm = reference(problem, 0.7, inside=inside)
    penalty.backward(problem.closure, problem.inputs, problem.targets)
    size = max(float(gradient.abs().max()) for gradient in expected if gradient is not None)
    for parameter, truth in zip(problem.model.parameters(), expected, strict=True):
        if truth is None:
            assert parameter.grad is None or not parameter.grad.any()
        else:  # biases in front of a norm have a gradient of 0: the whole gradient sets the scale
            torch.testing.assert_close(parameter.grad, truth, rtol=1e-11, atol=1e-13 * max(1.0, size))
    assert float(penalty.last.gradient_squared_norm) == pytest.approx(norm, rel=1e-12)
    if penalty.steps > 1:  # the numbers of the first step are those of the loop it is compared with
        assert float(penalty.last.curvature) == pytest.approx(curvature_of(problem, inside=inside), rel=1e-10)


def penalty_of(problem: Problem, **settings: object) -> GradientPenalty:
    return GradientPenalty(problem.model, 0.7, method="gram", micro_batch_size=SIZE, **settings)


@pytest.mark.parametrize("name", ONE_PASS)
def test_one_pass_gives_what_the_loop_gives(name: str, caplog: pytest.LogCaptureFixture) -> None:
    problem = ONE_PASS[name]()
    penalty = penalty_of(problem, check_every=0)
    calls = []

    def closure(x: Tensor, y: Tensor) -> Tensor:
        calls.append(len(x))
        return problem.closure(x, y)

    with caplog.at_level(logging.WARNING):
        for _ in range(2):  # the first step is compared with the loop, the second is one pass alone
            problem.model.zero_grad()
            assert_exact(problem, penalty)
        assert "one after another" not in caplog.text
    problem.model.zero_grad()
    penalty.backward(closure, problem.inputs, problem.targets)
    assert calls == ([SIZE, 12] if name in NO_ROW_MEANS else [SIZE])


@pytest.mark.parametrize("name", ["mlp", "transformer", "bare parameters", "convolution", "tied"])
def test_one_pass_with_parameters_left_out_of_the_norm(name: str) -> None:
    problem = ONE_PASS[name]()
    names = [key for key, parameter in problem.model.named_parameters() if parameter.requires_grad]
    for excluded in (names[:1], names[1:3], names[-1:]):
        problem.model.zero_grad()
        penalty = penalty_of(problem, exclude=excluded, check_every=0)
        for _ in range(2):
            problem.model.zero_grad()
            assert_exact(problem, penalty, inside=[key for key in names if key not in excluded])


def test_one_pass_reaches_inputs_and_encoders_outside_the_model() -> None:
    problem = ONE_PASS["mlp"]()
    outside = nn.Linear(5, 5).double()
    problem.inputs.requires_grad_()
    results = []
    for way in ("gram", "double_backward"):
        penalty = GradientPenalty(problem.model, 0.7, method=way, micro_batch_size=SIZE)
        for _ in range(2):
            for tensor in (*problem.model.parameters(), *outside.parameters(), problem.inputs):
                tensor.grad = None
            penalty.backward(lambda x, y: problem.closure(outside(x), y), problem.inputs, problem.targets)
        results.append([tensor.grad.clone() for tensor in (*outside.parameters(), problem.inputs)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-13)


class Counting(nn.Module):
    def __init__(self, *, replaced: bool) -> None:
        super().__init__()
        self.inner, self.replaced = mlp([5, 8, 3]), replaced
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.replaced:
            self.count = self.count + 1
        else:
            self.count += 1
        return self.inner(x) * self.count.clone()


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(checkpoint(lambda t: torch.tanh(self.enter(t)), x, use_reentrant=False))


def reads_a_number(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss = F.cross_entropy(model(x), y)
    return loss * (2.0 if loss.item() > 1.1 else 1.0)


LOOPS: dict[str, tuple[Callable[[], Problem], str]] = {
    "batch norm": (lambda: vectors(norm_net(nn.BatchNorm1d(8)), 5), "writes a buffer"),
    "a buffer written": (lambda: vectors(Counting(replaced=False), 5), "writes a buffer"),
    "a buffer replaced": (lambda: vectors(Counting(replaced=True), 5), "replaces a buffer"),
    "a custom function": (lambda: vectors(HiddenUse(), 3), "vmap"),
    "checkpointing": (lambda: vectors(Checkpointed(), 5), "checkpointing"),
    "a number read": (lambda: vectors(mlp([5, 8, 3]), 5, reads_a_number), "item"),
}


@pytest.mark.parametrize("name", LOOPS)
def test_the_loop_is_taken_where_one_pass_is_impossible_and_said_once(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, reason = LOOPS[name]
    problem, twin = make(), make()
    penalty, loop = (
        penalty_of(problem),
        GradientPenalty(twin.model, 0.7, method="double_backward", micro_batch_size=SIZE),
    )
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            penalty.backward(problem.closure, problem.inputs, problem.targets)
            loop.backward(twin.closure, twin.inputs, twin.targets)
    said = [record.getMessage() for record in caplog.records if "one after another" in record.getMessage()]
    assert len(said) == 1
    assert reason in said[0]
    for ours, theirs in zip(problem.model.parameters(), twin.model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-10, atol=1e-12)
    for ours, theirs in zip(problem.model.buffers(), twin.model.buffers(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_closure_that_draws_from_python_is_looped() -> None:
    problem = ONE_PASS["mlp"]()
    penalty = penalty_of(problem)
    random.seed(1)
    penalty.backward(lambda x, y: random.random() * problem.closure(x, y), problem.inputs, problem.targets)
    after = random.getstate()
    assert not penalty._runner.micro_batches.in_one_pass
    random.seed(1)
    for _ in range(4):
        random.random()
    assert random.getstate() == after


def test_a_wrong_one_pass_is_noticed_and_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A norm that is right for the whole batch and wrong for micro-batches."""
    problem = ONE_PASS["mlp"]()
    expected, _ = reference(problem, 0.7)
    plain = one_pass.squared_norm
    monkeypatch.setattr(one_pass, "squared_norm", lambda views, parameters: 2 * plain(views, parameters))
    penalty = penalty_of(problem)
    with caplog.at_level(logging.WARNING):
        penalty.backward(problem.closure, problem.inputs, problem.targets)
    assert "one pass gives a gradient that differs" in caplog.text
    for parameter, truth in zip(problem.model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, truth)


def test_dropout_has_a_mask_of_its_own_in_every_micro_batch() -> None:
    torch.manual_seed(0)
    seen = []
    model = nn.Sequential(nn.Linear(5, 64), nn.Dropout(0.5), nn.Linear(64, 3)).double()
    model[1].register_forward_hook(lambda module, inputs, output: module.training and seen.append(output == 0))
    penalty = GradientPenalty(model, 0.7, method="gram", micro_batch_size=SIZE)
    inputs = numbers(1, 5, seed=1).expand(12, 5)
    penalty.backward(lambda x, y: F.cross_entropy(model(x), y), inputs, labels(12, 3, 2))
    assert penalty._runner.micro_batches.in_one_pass
    assert len(seen) == 1
    masks = torch._C._functorch.get_unwrapped(seen[0]).reshape(12, 64)
    assert len({tuple(mask.tolist()) for mask in masks}) == 12


def test_the_comparison_repeats_every_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, compared = ONE_PASS["mlp"](), []
    plain = MicroBatches._compare
    monkeypatch.setattr(
        MicroBatches, "_compare", lambda self, *rest: compared.append(penalty.steps) or plain(self, *rest)
    )
    penalty = penalty_of(problem, check_every=3)
    for _ in range(7):
        penalty.backward(problem.closure, problem.inputs, problem.targets)
    assert compared == [0, 3, 6]


@pytest.mark.parametrize("accumulated", [False, True])
def test_weights_and_scalers(accumulated: bool) -> None:
    problem = ONE_PASS["mlp"]()
    twin = copy.deepcopy(problem)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0) if accumulated else None
    ours, theirs = (
        penalty_of(problem),
        GradientPenalty(twin.model, 0.7, method="double_backward", micro_batch_size=SIZE),
    )
    for _ in range(2):
        ours.backward(problem.closure, problem.inputs, problem.targets, weight=0.5, scaler=scaler)
        theirs.backward(twin.closure, twin.inputs, twin.targets, weight=0.5, scaler=scaler)
    assert float(ours.last.batch_sharpness) == pytest.approx(float(theirs.last.batch_sharpness), rel=1e-11)
    for a, b in zip(problem.model.parameters(), twin.model.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_autocast_in_one_pass(where: str) -> None:
    problem = ONE_PASS["wide"]()
    problem.model.float()
    expected = torch.cat([part.reshape(-1) for part in reference(_as_double(problem), 0.7)[0]])

    def closure(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=where == "inside" or torch.is_autocast_enabled("cpu")):
            return problem.closure(x.float(), y)

    penalty = penalty_of(problem, check_every=0)
    for _ in range(2):
        problem.model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=where == "outside"):
            penalty.backward(closure, problem.inputs, problem.targets)
    found = torch.cat([parameter.grad.reshape(-1) for parameter in problem.model.parameters()])
    assert penalty._runner.micro_batches.in_one_pass
    assert 1e-5 < float((found - expected).norm() / expected.norm()) < 0.05  # bfloat16 has 8 bits


def _as_double(problem: Problem) -> Problem:
    return Problem(copy.deepcopy(problem.model).double(), problem.inputs, problem.targets, problem.loss)


def test_auto_takes_one_pass_for_linear_layers_and_small_micro_batches() -> None:
    assert GradientPenalty(mlp([5, 12, 3]), 1.0, micro_batch_size=32).method == "gram"
    assert GradientPenalty(mlp([5, 12, 3]), 1.0).method == "double_backward"
    assert GradientPenalty(nn.Conv2d(4, 4, 3), 1.0, micro_batch_size=16).method == "gram"
    assert GradientPenalty(nn.Conv2d(4, 4, 3), 1.0, micro_batch_size=32).method == "double_backward"


@pytest.mark.parametrize("name", ["mlp", "wide", "transformer", "tied", "bare parameters", "batch norm"])
def test_the_factored_step_takes_micro_batches(name: str) -> None:
    make = ONE_PASS[name] if name in ONE_PASS else LOOPS[name][0]
    problem = make()
    optimizer = FactoredSGD(problem.model, lr=1.0, strength=0.7, micro_batch_size=SIZE)
    for _ in range(3):  # the first step is compared with a loop
        before = [parameter.detach().clone() for parameter in problem.model.parameters()]
        twin = Problem(copy.deepcopy(problem.model), problem.inputs, problem.targets, problem.loss)
        expected, norm = reference(twin, 0.7)
        curvature = curvature_of(twin)
        optimizer.step(problem.closure, problem.inputs, problem.targets)
        for old, parameter, truth in zip(before, problem.model.parameters(), expected, strict=True):
            moved = old - parameter.detach()
            torch.testing.assert_close(
                moved, torch.zeros_like(moved) if truth is None else truth, rtol=1e-9, atol=1e-12
            )
        assert float(optimizer.last.gradient_squared_norm) == pytest.approx(norm, rel=1e-11)
    assert float(optimizer.last.curvature) == pytest.approx(curvature, rel=1e-9)


def test_the_factored_step_forms_no_weight_gradient_in_one_pass() -> None:
    problem = ONE_PASS["wide"]()
    optimizer = FactoredSGD(problem.model, lr=0.1, strength=0.7, micro_batch_size=SIZE)
    for _ in range(2):
        optimizer.step(problem.closure, problem.inputs, problem.targets)
    assert all(parameter.grad is None for parameter in problem.model.parameters() if parameter.dim() == 2)


def test_records_have_the_same_entries_at_compared_steps_as_at_others() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    inputs, targets = torch.randn(12, 6, dtype=torch.float64), torch.randint(3, (12,))
    penalty = GradientPenalty(model, 0.1, micro_batch_size=4)
    rows = []
    for _ in range(3):  # the first is compared with a loop
        penalty.backward(lambda x, y: F.cross_entropy(model(x), y), inputs, targets)
        rows.append(penalty.last.to_row())
    assert rows[0].keys() == rows[1].keys() == rows[2].keys()
    assert rows[0]["batch_sharpness"] == pytest.approx(rows[1]["batch_sharpness"], rel=1e-9)


class Noisy(nn.Module):
    """What shows how often a step runs, and on how many rows: dropout masks and the counts of batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 8), nn.Linear(8, 3)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


UNPENALISED: dict[str, tuple[object, dict[str, object]]] = {
    "every": (0.7, {"every": 3}),
    "probability": (0.7, {"probability": 1e-9}),
    "a schedule at 0": (lambda step: 0.0, {}),
    "no strength": (0.0, {}),
}


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("method", ["gram", "double_backward", "finite_difference"])
@pytest.mark.parametrize("name", UNPENALISED)
def test_a_step_without_a_penalty_is_one_plain_pass_of_the_whole_batch(name: str, method: str, as_tensor: bool) -> None:
    strength, settings = UNPENALISED[name]
    problem = vectors(Noisy(), 5)
    penalty = GradientPenalty(problem.model, strength, method=method, micro_batch_size=SIZE, **settings)
    if name == "every":
        penalty.backward(problem.closure, problem.inputs, problem.targets)
    twin, rows = copy.deepcopy(problem.model), []
    for model in (problem.model, twin):
        model.zero_grad()

    def closure(x: Tensor, y: Tensor) -> Tensor:
        rows.append(len(x))
        return problem.closure(x, y)

    torch.manual_seed(3)
    if as_tensor:
        loss = penalty.loss(closure, problem.inputs, problem.targets)
        loss.backward()
    else:
        loss = penalty.backward(closure, problem.inputs, problem.targets)
    after = torch.get_rng_state()
    torch.manual_seed(3)
    plain = problem.loss(twin, problem.inputs, problem.targets)
    plain.backward()
    assert rows == [12]
    assert torch.equal(loss, plain)
    assert torch.equal(torch.get_rng_state(), after)
    for ours, theirs in zip(problem.model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)
    for ours, theirs in zip(problem.model.buffers(), twin.buffers(), strict=True):
        assert torch.equal(ours, theirs)
    assert penalty.last.gradient_squared_norm is None


def test_a_factored_step_without_a_penalty_is_one_plain_pass_of_the_whole_batch() -> None:
    problem = vectors(Noisy(), 5)
    twin, rows = copy.deepcopy(problem.model), []
    ours = FactoredSGD(problem.model, lr=0.1, micro_batch_size=SIZE)
    theirs = FactoredSGD(twin, lr=0.1)

    def closure(x: Tensor, y: Tensor) -> Tensor:
        rows.append(len(x))
        return problem.closure(x, y)

    torch.manual_seed(3)
    loss = ours.step(closure, problem.inputs, problem.targets)
    torch.manual_seed(3)
    assert torch.equal(loss, theirs.step(lambda: problem.loss(twin, problem.inputs, problem.targets)))
    assert rows == [12]
    for name, tensor in problem.model.state_dict().items():
        assert torch.equal(tensor, twin.state_dict()[name])
