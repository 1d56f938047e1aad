"""`Relative`: λ = r · mean‖∇Ĉ‖ / mean‖½ H∇Ĉ‖, against a loop that imports nothing of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tacit
from cases import CASES, Case, labels, numbers, spread
from tacit.penalty import METHODS
from tacit.penalty.pieces import drawn_rows
from tacit.penalty.relative import RelativeStrength

START, CAP, SMOOTHING = 2.0**-14, 16.0, 0.02
ROWS, STEPS = 12, 20


def mlp() -> nn.Module:
    return spread(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))).double()


def convolution_with_batch_norm() -> nn.Module:
    layers = [nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 3, 3), nn.BatchNorm1d(3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)]
    return spread(nn.Sequential(*layers)).double()


def relative(ratio: Any, **options: Any) -> tacit.Relative:
    """With a cap that these small models do not meet: their curvature is about 1."""
    return tacit.Relative(ratio, **{"cap": CAP, **options})


def batch(step: int) -> tuple[Tensor, Tensor]:
    return numbers(ROWS, 6, seed=2 * step + 1), labels(ROWS, 3, 2 * step + 2)


def loss_of(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, y: F.cross_entropy(model(x), y)


def length(vectors: list[Tensor]) -> float:
    return math.sqrt(sum(float(vector.square().sum()) for vector in vectors))


def naive_strengths(
    model: nn.Module, ratio: float, pieces: int, *, every: int = 1, sampled: int | None = None
) -> list[float]:
    """λ of each step of a training with momentum: the averages are written out as sums over all steps."""
    parameters = list(model.parameters())
    velocity = [torch.zeros_like(parameter) for parameter in parameters]
    seen: list[tuple[float, float]] = []
    guess: tuple[float, float] | None = None
    strength, found = START, []
    for step in range(STEPS):
        x, y = batch(step)
        penalised = step % every == 0
        g = [torch.zeros_like(p) for p in parameters]
        product = [torch.zeros_like(p) for p in parameters]
        parts = list(zip(x.chunk(pieces if penalised else 1), y.chunk(pieces if penalised else 1), strict=True))
        if sampled is not None:
            rows = drawn_rows(ROWS, sampled * ROWS // pieces, seed=0, call=step).split(ROWS // pieces)
            parts = [(x[each], y[each]) for each in rows]
        for part in parts:
            first = torch.autograd.grad(F.cross_entropy(model(part[0]), part[1]), parameters, create_graph=True)
            along = sum((a * a.detach()).sum() for a in first)
            second = torch.autograd.grad(along, parameters)
            share = 1 / sampled if sampled is not None else len(part[0]) / ROWS
            g = [a + share * b.detach() for a, b in zip(g, first, strict=True)]
            product = [a + share * b / 2 for a, b in zip(product, second, strict=True)]
        if sampled is not None:
            g = list(torch.autograd.grad(F.cross_entropy(model(x), y), parameters))
        found.append(every * strength if penalised else 0.0)
        with torch.no_grad():
            for p, v, a, b in zip(parameters, velocity, g, product, strict=True):
                v.mul_(0.9).add_(a + found[-1] * b)
                p.sub_(0.05 * v)
        if penalised:
            norms = length(g), length(product)
            if seen or 16 * strength * norms[1] >= ratio * norms[0]:
                seen.append(norms)
            guess = norms
            weights = [SMOOTHING * (1 - SMOOTHING) ** (len(seen) - 1 - k) for k in range(len(seen))]
            means = (
                [sum(w * n[i] for w, n in zip(weights, seen, strict=True)) / sum(weights) for i in (0, 1)]
                if seen
                else guess
            )
            strength = min(ratio * means[0] / means[1], CAP, 16 * max(strength, START))
    return found


def train(
    model: nn.Module, strength: Any, steps: range = range(STEPS), *, optimizer: Any = None, **options: Any
) -> tuple[list[float], tacit.GradientPenalty, torch.optim.Optimizer]:
    pieces = options.pop("pieces", 1)
    state, dtype = options.pop("state", None), options.pop("dtype", torch.float64)
    if pieces > 1:
        options["micro_batch_size"] = ROWS // pieces
    penalty = tacit.GradientPenalty(model, strength, **options)
    if state is not None:
        penalty.load_state_dict(state)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    found = []
    for step in steps:
        optimizer.zero_grad()
        x, y = batch(step)
        penalty.backward(loss_of(model), x.to(dtype), y)
        optimizer.step()
        found.append(penalty.last.strength)
    return found, penalty, optimizer


@pytest.mark.parametrize("method", ["gram", "double_backward"])
@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("make", [mlp, convolution_with_batch_norm])
def test_the_strengths_are_those_of_a_naive_loop(make: Callable[[], nn.Module], pieces: int, method: str) -> None:
    expected = naive_strengths(make(), 0.4, pieces)
    found, _, _ = train(make(), relative(0.4), pieces=pieces, method=method)
    assert found == pytest.approx(expected, rel=1e-10)
    assert len({round(strength, 12) for strength in found}) == STEPS


@pytest.mark.parametrize("method", ["gram", "double_backward"])
@pytest.mark.parametrize("sampled", [1, 2])
@pytest.mark.parametrize("make", [mlp, convolution_with_batch_norm])
def test_sampled_it_is_the_gradient_of_the_whole_batch_and_the_mean_that_is_applied(
    make: Callable[[], nn.Module], sampled: int, method: str
) -> None:
    expected = naive_strengths(make(), 0.4, 3, sampled=sampled)
    found, penalty, _ = train(make(), relative(0.4), pieces=3, sampled=sampled, method=method)
    assert found == pytest.approx(expected, rel=1e-10)
    assert penalty.sampled == sampled


def test_sampled_and_whole_have_one_ratio_where_all_micro_batches_are_drawn() -> None:
    """Of a mean over all micro-batches the order of rows is all that differs: with equal rows nothing does."""
    found = []
    for sampled in (None, 3):
        penalty = tacit.GradientPenalty(mlp(), relative(0.4), micro_batch_size=4, sampled=sampled)
        x, y = (tensor[:1].repeat_interleave(ROWS, 0) for tensor in batch(0))
        for _ in range(6):
            penalty.model.zero_grad()
            penalty.backward(loss_of(penalty.model), x, y)
        found.append(penalty.last.strength)
    assert found[0] == pytest.approx(found[1], rel=1e-10)


@pytest.mark.parametrize("options", [{"strength": relative(0.4)}, {"strength": 0.1, "largest_ratio": 1.0}])
def test_calls_that_are_not_drawn_have_no_penalty_and_measure_nothing(options: dict[str, Any]) -> None:
    penalty = tacit.GradientPenalty(mlp(), sampled=1, **options)
    found = []
    for call in range(16):
        before = penalty.state_dict()
        penalty.backward(loss_of(penalty.model), *batch(call), weight=0.25, part=(call % 4, 4))
        found.append(penalty.last.strength)
        assert (penalty.last.gradient_squared_norm is None) == (found[-1] == 0)
        if found[-1] == 0:
            assert {**penalty.state_dict(), "steps": 0} == {**before, "steps": 0}
    assert [sum(strength > 0 for strength in found[k : k + 4]) for k in range(0, 16, 4)] == [1] * 4


def test_sampled_steps_that_a_scaler_scales_measure_unscaled_norms() -> None:
    found = []
    for scale in (1.0, 2.0**10):
        penalty = tacit.GradientPenalty(mlp(), relative(0.4), micro_batch_size=4, sampled=1)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        for step in range(6):
            penalty.backward(loss_of(penalty.model), *batch(step), scaler=scaler, weight=0.5)
            penalty.model.zero_grad()
        found.append(penalty.state_dict()["relative"])
    assert found[0] == pytest.approx(found[1], rel=1e-10)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_gram_finds_the_strength_of_double_backward(case: Case) -> None:
    """Layers used twice, tied weights, embeddings, convolutions: `gram` forms the gradients that it saves otherwise."""
    found = {}
    for method in ("gram", "double_backward"):
        torch.manual_seed(0)
        model = case.make().double()
        penalty = tacit.GradientPenalty(model, relative(0.4), method=method)
        found[method] = []
        for _ in range(5):
            penalty.backward(lambda model=model: case.loss(model))
            found[method].append(penalty.last.strength)
    assert found["gram"] == pytest.approx(found["double_backward"], rel=1e-8)
    assert found["gram"][-1] > START


@pytest.mark.parametrize("method", ["gram", "double_backward"])
@pytest.mark.parametrize("pieces", [1, 3])
def test_under_autocast_it_is_the_strength_of_float64_to_the_precision_of_the_passes(method: str, pieces: int) -> None:
    model = mlp().float()
    penalty = tacit.GradientPenalty(model, relative(0.4), method=method, micro_batch_size=ROWS // pieces)
    for _ in range(8):
        with torch.autocast("cpu", torch.bfloat16):
            penalty.backward(lambda x, y: F.cross_entropy(model(x.float()), y), *batch(0))
    exact = tacit.GradientPenalty(mlp(), relative(0.4), micro_batch_size=ROWS // pieces)
    for _ in range(8):
        exact.backward(loss_of(exact.model), *batch(0))
    assert penalty.last.strength == pytest.approx(exact.last.strength, rel=0.1)


def test_a_finite_difference_finds_nearly_the_same() -> None:
    found, _, _ = train(mlp(), relative(0.4), pieces=3, method="finite_difference", central=True)
    assert found == pytest.approx(naive_strengths(mlp(), 0.4, 3), rel=1e-4)


def test_micro_batches_that_do_not_divide_the_batch_count_by_their_rows() -> None:
    """Pieces of 5, 5 and 2 rows: in one pass but for the last, or one after another."""
    found = {}
    for method in ("gram", "double_backward"):
        found[method], _, _ = train(mlp(), relative(0.4), method=method, micro_batch_size=5)
    assert found["gram"] == pytest.approx(found["double_backward"], rel=1e-10)


def test_rare_steps_have_k_times_the_strength_and_others_measure_nothing() -> None:
    found, _, _ = train(mlp(), relative(0.2), every=3)
    assert found == pytest.approx(naive_strengths(mlp(), 0.2, 1, every=3), rel=1e-10)
    assert found[1:3] == [0.0, 0.0]


def test_a_coin_weights_the_strength_by_its_inverse() -> None:
    penalty = tacit.GradientPenalty(mlp(), relative(0.2, start=0.5, smoothing=1.0), probability=0.5)
    found = []
    for _ in range(30):
        penalty.backward(loss_of(penalty.model), *batch(0))
        found.append((penalty.last.strength, penalty.last))
    shares = [float(last.penalty_gradient_norm / last.gradient_squared_norm.sqrt()) for value, last in found if value]
    assert 0 < len(shares) < 30
    assert shares[2:] == pytest.approx([0.4] * (len(shares) - 2), rel=1e-9)


@pytest.mark.parametrize("pieces", [1, 3])
def test_the_part_of_a_step_is_the_ratio_times_the_gradient(pieces: int) -> None:
    """Where nothing moves, exactly; the vectors are taken from `.grad` with and without the penalty."""
    model = mlp()
    penalty = tacit.GradientPenalty(model, relative(0.4), micro_batch_size=ROWS // pieces)
    for _ in range(8):
        model.zero_grad()
        penalty.backward(loss_of(model), *batch(0))
    whole = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    loss_of(model)(*batch(0)).backward()
    plain = [parameter.grad for parameter in model.parameters()]
    part = [a - b for a, b in zip(whole, plain, strict=True)]
    assert length(part) == pytest.approx(0.4 * length(plain), rel=1e-10)


@pytest.mark.parametrize("method", ["gram", "double_backward"])
def test_of_a_loss_that_is_a_sum_over_rows_it_is_the_ratio_to_the_gradient_of_the_whole_batch(method: str) -> None:
    """Its own gradient is not the mean of the micro-batches': the step takes it from a plain pass."""
    model = mlp()
    penalty = tacit.GradientPenalty(model, relative(0.4), micro_batch_size=4, method=method)
    inputs, targets = batch(0)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y, reduction="sum")

    for _ in range(8):
        model.zero_grad()
        penalty.backward(loss, inputs, targets)
    whole = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    loss(inputs, targets).backward()
    plain = [parameter.grad for parameter in model.parameters()]
    assert length([a - b for a, b in zip(whole, plain, strict=True)]) == pytest.approx(0.4 * length(plain), rel=1e-10)


def test_excluded_parameters_count_in_neither_norm() -> None:
    model = mlp()
    penalty = tacit.GradientPenalty(model, relative(0.4), exclude="0.*", micro_batch_size=4)
    for _ in range(8):
        model.zero_grad()
        penalty.backward(loss_of(model), *batch(0))
    whole = [parameter.grad.clone() for parameter in model[2].parameters()]
    model.zero_grad()
    loss_of(model)(*batch(0)).backward()
    plain = [parameter.grad for parameter in model[2].parameters()]
    assert length([a - b for a, b in zip(whole, plain, strict=True)]) == pytest.approx(0.4 * length(plain), rel=1e-10)


def test_accumulated_calls_have_the_strength_of_whole_ones() -> None:
    weighted, whole = (tacit.GradientPenalty(mlp(), relative(0.4)) for _ in range(2))
    for step in range(6):
        weighted.backward(loss_of(weighted.model), *batch(step), weight=0.25)
        whole.backward(loss_of(whole.model), *batch(step))
        assert weighted.last.strength == pytest.approx(whole.last.strength, rel=1e-10)


def test_a_call_of_weight_zero_measures_nothing() -> None:
    penalty = tacit.GradientPenalty(mlp(), relative(0.4))
    penalty.backward(loss_of(penalty.model), *batch(0))
    before = penalty.state_dict()
    penalty.backward(loss_of(penalty.model), *batch(1), weight=0.0)
    assert penalty.state_dict()["relative"] == before["relative"]


def test_a_loss_for_a_trainer_measures_the_same() -> None:
    ours, theirs = (tacit.GradientPenalty(mlp(), relative(0.4), micro_batch_size=4) for _ in range(2))
    for step in range(4):
        (ours.loss(loss_of(ours.model), *batch(step)) / 7).backward()
        theirs.backward(loss_of(theirs.model), *batch(step))
        assert ours.last.strength == theirs.last.strength


# -- what must not count ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("method", list(METHODS))
def test_an_overflow_that_the_scaler_skips_does_not_count(method: str, pieces: int) -> None:
    model = mlp().float()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), torch.amp.GradScaler("cpu")
    size = ROWS // pieces if pieces > 1 else None
    penalty = tacit.GradientPenalty(model, relative(0.4), method=method, micro_batch_size=size)
    found = []
    for step in range(8):
        optimizer.zero_grad()
        factor = math.inf if step == 3 else 1.0
        loss = lambda x, y, factor=factor: factor * F.cross_entropy(model(x.float()), y)  # noqa: E731
        penalty.backward(loss, *batch(0), scaler=scaler)
        before = model[0].weight.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(before, model[0].weight) == (step == 3)
        found.append(penalty.last.strength)
    assert all(map(math.isfinite, found))
    assert found[3] == found[4] != found[5]


@pytest.mark.parametrize("norms", [(math.inf, 1.0), (1.0, math.inf), (math.nan, 1.0), (1.0, math.nan), (0.0, 0.0)])
def test_norms_that_say_nothing_change_nothing(norms: tuple[float, float]) -> None:
    strength = RelativeStrength(relative(0.4))
    for _ in range(8):
        strength.now(0)
        strength.see(torch.tensor(2.0), torch.tensor(1.0))
    assert float(strength.now(0)) == pytest.approx(0.8)
    before = strength.state_dict()
    strength.see(*map(torch.tensor, norms))
    assert strength.state_dict() == before


def test_float16_overflow_in_autocast_does_not_count() -> None:
    model = nn.Linear(12, 3)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=1e-3), torch.amp.GradScaler("cpu", init_scale=2.0**12)
    penalty = tacit.GradientPenalty(model, relative(0.4), method="double_backward")
    found = []
    for step in range(8):
        optimizer.zero_grad()

        def loss(step: int = step) -> Tensor:
            with torch.autocast("cpu", torch.float16):
                outputs = model(torch.linspace(-1, 1, 96).view(8, 12) * (1e5 if step == 2 else 1.0))
            return outputs.float().square().mean()

        penalty.backward(loss, scaler=scaler)
        scaler.step(optimizer)
        scaler.update()
        found.append(penalty.last.strength)
    assert found[2] == found[3]
    assert all(0 < strength <= CAP for strength in found)
    assert found[-1] > found[0]


def test_a_first_step_that_overflows_leaves_the_start() -> None:
    penalty = tacit.GradientPenalty(mlp(), relative(0.4))
    scaler = torch.amp.GradScaler("cpu")
    found = []
    for factor in (math.nan, 1.0, 1.0):
        penalty.backward(lambda x, y, factor=factor: factor * loss_of(penalty.model)(x, y), *batch(0), scaler=scaler)
        found.append(penalty.last.strength)
    assert found[:2] == [START, START]
    assert found[2] > START


def test_a_gradient_of_zero_keeps_the_last_strength() -> None:
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, 1.0)
    penalty = tacit.GradientPenalty(model, relative(0.4))
    found = []
    for value in (0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0):
        nn.init.constant_(model.weight, value)
        penalty.backward(lambda: model(torch.ones(1, 1).double()).square().sum())
        found.append(penalty.last.strength)
    assert found[:2] == [START, START]
    # ‖∇Ĉ‖ = 2 and ‖½ H∇Ĉ‖ = 2 at ω = 1; the rise is 16 times a step
    assert found[2:5] == pytest.approx([2**-10, 2**-6, 2**-2])
    assert found[5] == found[6] == found[7] == pytest.approx(0.4)


def test_without_curvature_the_strength_rises_to_the_cap_and_no_farther() -> None:
    model = nn.Linear(2, 1).double()
    penalty = tacit.GradientPenalty(model, relative(0.4, cap=0.5, start=2**-8))
    found = []
    for _ in range(4):
        penalty.backward(lambda: model(torch.ones(1, 2).double()).sum())
        found.append(penalty.last.strength)
    assert found == [2**-8, 2**-4, 0.5, 0.5]


@pytest.mark.parametrize("start", [1e-12, 1e-4, 0.1, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_start_is_soon_forgotten(start: float, dtype: torch.dtype) -> None:
    """A part that is all rounding makes λ small for one step, not for the fifty that an average remembers."""
    penalty = tacit.GradientPenalty(mlp().to(dtype), relative(0.4, start=start), method="double_backward")
    for _ in range(16):
        penalty.backward(lambda x, y: loss_of(penalty.model)(x.to(dtype), y), *batch(0))
        penalty.model.zero_grad()
    share = penalty.last.penalty_gradient_norm / penalty.last.gradient_squared_norm.sqrt()
    assert float(share) == pytest.approx(0.4, rel=0.02 if dtype == torch.float32 else 0.2)


@pytest.mark.parametrize("method", ["gram", "double_backward"])
@pytest.mark.parametrize("size", [None, 2])
def test_norms_of_half_precision_parameters_are_those_of_float32(method: str, size: int | None) -> None:
    """‖∇Ĉ‖² is 5e5 here, beyond float16; and more numbers than are looked at as one vector."""
    model = nn.Linear(300, 300, bias=False).to(torch.float16)
    nn.init.constant_(model.weight, 2**-6)
    penalty = tacit.GradientPenalty(model, relative(0.4), method=method, micro_batch_size=size)
    for _ in range(6):
        model.zero_grad()
        penalty.backward(lambda x: model(x).float().square().sum(1).mean() / 4, torch.ones(4, 300).half())
    plain = 300 * 300 * (300 / 64 / 2) ** 2
    assert float(penalty.last.gradient_squared_norm) == pytest.approx(plain, rel=1e-3)
    share = penalty.last.penalty_gradient_norm
    # H = ½xxᵀ for each output, so ½ H g = 300/4 g
    assert penalty.last.strength == pytest.approx(0.4 / 75, rel=0.02)
    assert share is None or float(share) == pytest.approx(0.4 * plain**0.5, rel=0.02)


# -- a whole run ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("pieces", [1, 3])
def test_a_resumed_run_ends_with_the_same_bits(pieces: int, dtype: torch.dtype) -> None:
    options = {"pieces": pieces, "method": "double_backward", "dtype": dtype}
    straight, stopped = mlp().to(dtype), mlp().to(dtype)
    expected, _, _ = train(straight, relative(0.4), **options)
    first, penalty, optimizer = train(stopped, relative(0.4), range(7), **options)
    state = json.loads(json.dumps(penalty.state_dict()["relative"]))
    resumed = {**penalty.state_dict(), "relative": state}
    rest, _, _ = train(stopped, relative(0.4), range(7, STEPS), optimizer=optimizer, state=resumed, **options)
    assert first + rest == expected
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), stopped.parameters(), strict=True))


def test_the_state_is_of_plain_numbers_and_without_relative_it_is_none() -> None:
    _, penalty, _ = train(mlp(), relative(0.4), range(2))
    state = penalty.state_dict()["relative"]
    assert state is not None
    assert {type(value) for value in state.values()} == {float, int}
    assert tacit.GradientPenalty(mlp(), 0.1).state_dict()["relative"] is None
    assert tacit.GradientPenalty(mlp(), relative(0.4)).state_dict()["relative"] is None


def test_a_late_start_goes_on_where_a_fixed_strength_diverges() -> None:
    """Plain steps have sharpened nothing here: the narrow valley itself is what λ meets at step 50."""

    def end(late: Any) -> float:
        model = nn.Linear(2, 1, bias=False).double()
        nn.init.constant_(model.weight, 1.0)
        inputs = torch.tensor([[6.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
        penalty = tacit.GradientPenalty(model, 0.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.025, momentum=0.9)
        for step in range(200):
            if step == 50:
                penalty.strength = late
            optimizer.zero_grad()
            penalty.backward(lambda: (model(inputs).square()).sum())
            optimizer.step()
            if model.weight.abs().max() > 1e6:
                return math.inf
        return float(model.weight.detach().abs().max())

    assert end(1.0) == math.inf
    assert end(tacit.Relative(0.4)) < 0.1


def test_a_late_start_on_rare_steps_does_not_diverge() -> None:
    model = mlp()
    penalty = tacit.GradientPenalty(model, 0.0, every=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(150):
        if step == 50:
            penalty.strength = tacit.Relative(0.4)
        optimizer.zero_grad()
        losses.append(float(penalty.backward(loss_of(model), *batch(0))))
        optimizer.step()
    assert losses[-1] < losses[49] < losses[0]


def test_another_ratio_goes_on_with_the_same_averages() -> None:
    _, penalty, _ = train(mlp(), relative(0.2), range(8))
    penalty.backward(loss_of(penalty.model), *batch(8))
    before = penalty.state_dict()["relative"]
    penalty.strength = relative(0.4)
    assert penalty.state_dict()["relative"] == before
    penalty.backward(loss_of(penalty.model), *batch(8))
    assert penalty.last.strength == pytest.approx(0.4 * before["gradient_norm"] / before["product_norm"], rel=1e-12)


def test_a_ratio_may_be_a_schedule() -> None:
    ratio = tacit.schedules.early(0.4, 10, share=0.5)
    found, penalty, _ = train(mlp(), relative(ratio), range(10))
    assert found[:5] == pytest.approx(naive_strengths(mlp(), 0.4, 1)[:5], rel=1e-10)
    assert found[5:] == [0.0] * 5
    assert penalty.last.gradient_squared_norm is None


@pytest.mark.parametrize(("pause", "expected"), [(49, 0.8), (50, START)])
def test_after_a_long_pause_it_begins_again(pause: int, expected: float) -> None:
    """The averages are of another place then: sharper, and with a smaller gradient."""
    strength = RelativeStrength(relative(lambda step: 0.4 if step in range(8) or step >= 100 else 0.0))
    for step in range(8):
        strength.now(step)
        strength.see(torch.tensor(2.0), torch.tensor(1.0))
    for number in range(pause):
        if number == pause // 2:
            resumed = RelativeStrength(strength.facts)
            resumed.load_state_dict(strength.state_dict())
            strength = resumed
        assert strength.now(8 + number) == 0.0
    assert float(strength.now(100)) == pytest.approx(expected)


@pytest.mark.parametrize(("size", "sampled"), [(None, None), (4, None), (4, 1)])
def test_nothing_waits_for_the_device(monkeypatch: pytest.MonkeyPatch, size: int | None, sampled: int | None) -> None:
    options: dict[str, Any] = {"method": "double_backward", "defer_checks": True}
    options |= {"micro_batch_size": size, "sampled": sampled}
    penalty = tacit.GradientPenalty(mlp(), relative(0.4), **options)
    waits = []
    for step in range(8):
        if step == 3:  # the first steps look at more
            for name in ("item", "__float__", "__bool__", "__int__", "tolist", "cpu"):
                original = getattr(Tensor, name)
                monkeypatch.setattr(
                    Tensor, name, lambda *given, of=original, name=name: (waits.append(name), of(*given))[1]
                )
        penalty.backward(loss_of(penalty.model), *batch(step))
    assert waits == []
    assert penalty.last.strength > 0
    assert waits


# -- what is shown and refused ----------------------------------------------------------------------------------------


def test_it_is_shown_as_it_was_written() -> None:
    assert repr(tacit.Relative(0.4)) == "Relative(0.4)"
    assert repr(tacit.Relative(0.4, cap=2)) == "Relative(0.4, cap=2)"
    penalty = tacit.GradientPenalty(mlp(), tacit.Relative(0.4))
    assert "strength=Relative(0.4)" in repr(penalty)
    assert penalty.strength == tacit.Relative(0.4)


def test_two_guards_for_one_thing_are_refused() -> None:
    with pytest.raises(tacit.InputError, match=r"largest_ratio=1 with strength=Relative\(0.4\); expected one of"):
        tacit.GradientPenalty(mlp(), tacit.Relative(0.4), largest_ratio=1.0)
    penalty = tacit.GradientPenalty(mlp(), 0.1, largest_ratio=1.0)
    with pytest.raises(tacit.InputError, match="Leave largest_ratio out"):
        penalty.strength = tacit.Relative(0.4)
    assert penalty.strength == 0.1


def test_a_part_alone_is_refused_because_nobody_tells_the_gradient_of_the_whole_batch() -> None:
    model = mlp()
    with pytest.raises(tacit.InputError, match=r"penalty.add with strength=Relative\(0.4\)"):
        tacit.GradientPenalty(model, tacit.Relative(0.4)).add(loss_of(model), *batch(0))


def test_where_the_norm_is_not_known_it_is_refused_and_nothing_is_touched() -> None:
    with pytest.raises(tacit.InputError, match="norm_of='global_batch' with strength=Relative"):
        tacit.GradientPenalty(mlp(), tacit.Relative(0.4), norm_of="global_batch")
    model = mlp()
    penalty = tacit.GradientPenalty(model, tacit.Relative(0.4), method="double_backward")
    with pytest.raises(tacit.InputError, match="second_view with strength=Relative"):
        penalty.backward(lambda: loss_of(model)(*batch(0)), second_view=lambda: loss_of(model)(*batch(1)))
    assert model[0].weight.grad is None
    assert penalty.steps == 0


def test_a_schedule_of_relative_strengths_is_refused() -> None:
    model = mlp()
    penalty = tacit.GradientPenalty(model, lambda step: tacit.Relative(0.4))  # type: ignore[arg-type,return-value]
    with pytest.raises(tacit.InputError, match=r"strength=Relative\(0.4\); expected a number"):
        penalty.backward(loss_of(model), *batch(0))
