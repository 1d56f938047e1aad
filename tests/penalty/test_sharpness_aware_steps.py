"""`SharpnessAware` against sharpness-aware minimization written as a loop, and what a step leaves behind."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from cases import CASES, Case, TransformerBlock, labels, numbers, spread, wide_net
from oracles import sharpness_aware_gradient
from tacit import InputError, Recorder, SharpnessAware
from tacit.penalty.pieces import drawn_rows

RADIUS = 0.1
X, Y = numbers(8, 12, seed=1), labels(8, 3, 2)
# The two sides round the same sums in another order: 1e-12 is ten thousand roundings of float64.
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def plain_gradient(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> dict[str, Tensor]:
    model = copy.deepcopy(model)
    loss(model).backward()
    return gradients(model)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in model.named_parameters()
    }


def values(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_bitwise(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert expected
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def by_hand(model: nn.Module, *losses: Any, radius: float = RADIUS, **options: Any) -> tuple[Tensor, dict[str, Tensor]]:
    return sharpness_aware_gradient(model, *losses, radius=radius, **options)


def net() -> nn.Module:
    return spread(wide_net()).double()


def convolution_net() -> nn.Module:
    made = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Conv2d(4, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(3, 3)
    )
    return spread(made).double()


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def of_tokens(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


@dataclass
class Batched:
    """A model whose loss takes the batch."""

    make: Callable[[], nn.Module]
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor]
    batch: tuple[Tensor, Tensor]


BATCHED = {
    "mlp": Batched(net, cross_entropy, (X, Y)),
    "convolution and batch norm": Batched(convolution_net, cross_entropy, (numbers(8, 2, 4, 4, seed=1), Y)),
    "transformer": Batched(
        lambda: spread(TransformerBlock()).double(),
        of_tokens,
        (labels(32, 7, 3).view(8, 4), labels(32, 7, 4).view(8, 4)),
    ),
}


# --- The gradient ---


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_of_the_whole_batch_it_is_the_loop_by_hand(case: Case) -> None:
    model = case.make().double()
    loss, expected = by_hand(model, case.loss)
    sam = SharpnessAware(model, RADIUS)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    torch.manual_seed(0)
    found = sam.backward(lambda: case.loss(model))
    torch.testing.assert_close(gradients(model), expected, **CLOSE)
    torch.testing.assert_close(found, loss, **CLOSE)
    assert_bitwise(dict(model.named_parameters()), before)


@pytest.mark.parametrize("rows", [1, 3, 8, 100])
@pytest.mark.parametrize("case", BATCHED.values(), ids=BATCHED)
def test_with_a_direction_from_drawn_rows_it_is_the_loop_by_hand(case: Batched, rows: int) -> None:
    model = case.make()
    sam, seen = SharpnessAware(model, RADIUS, sampled=rows, seed=5), []

    def closure(x: Tensor, y: Tensor) -> Tensor:
        seen.append((x, y))
        return case.loss(model, x, y)

    for call in range(3):
        seen.clear()
        model.zero_grad()
        loss = sam.backward(closure, *case.batch)
        drawn, whole = seen
        if rows < 8:
            numbers_of_rows = drawn_rows(8, rows, seed=5, call=call)
            assert all(torch.equal(part, of[numbers_of_rows]) for part, of in zip(drawn, case.batch, strict=True))
        assert whole[0] is case.batch[0]
        expected_loss, expected = by_hand(
            model, lambda m, w=whole: case.loss(m, *w), lambda m, d=drawn: case.loss(m, *d)
        )
        torch.testing.assert_close(gradients(model), expected, **CLOSE)
        torch.testing.assert_close(loss, expected_loss, **CLOSE)
    assert sam.last.rows == min(rows, 8)


@pytest.mark.parametrize("options", [{}, {"sampled": 3}, {"sampled": 8}])
def test_a_closure_is_told_which_pass_only_finds_the_direction(options: dict[str, int]) -> None:
    model, seen = net(), []
    sam = SharpnessAware(model, lambda step: RADIUS if step else 0.0, **options)

    def closure(x: Tensor, y: Tensor) -> Tensor:
        seen.append(sam.finds_direction)
        if len(seen) == 4:
            raise KeyError("broken")
        return cross_entropy(model, x, y)

    sam.backward(closure, X, Y)
    sam.backward(closure, X, Y)
    assert seen == [False, True, False]  # a step of radius 0, and one that moves
    with pytest.raises(KeyError):
        sam.backward(closure, X, Y)
    assert seen[3:] == [True]
    assert not sam.finds_direction


def test_a_sampled_direction_is_another_one() -> None:
    """Otherwise the test above could not tell rows from the whole batch, nor the moved gradient from the plain one."""
    model = net()
    _, whole = by_hand(model, lambda m: cross_entropy(m, X, Y))
    _, drawn = by_hand(model, lambda m: cross_entropy(m, X, Y), lambda m: cross_entropy(m, X[:3], Y[:3]))
    plain = plain_gradient(model, lambda m: cross_entropy(m, X, Y))
    for other in (drawn, plain):
        assert (whole["0.weight"] - other["0.weight"]).norm() > 1e-3 * whole["0.weight"].norm()


def test_excluded_parameters_do_not_move_and_get_their_gradient() -> None:
    model = net()
    _, expected = by_hand(model, lambda m: cross_entropy(m, X, Y), skip=("0.weight", "0.bias"))
    _, everything = by_hand(model, lambda m: cross_entropy(m, X, Y))
    sam = SharpnessAware(model, RADIUS, exclude=["0.*"])
    sam.backward(lambda: cross_entropy(model, X, Y))
    torch.testing.assert_close(gradients(model), expected, **CLOSE)
    assert (expected["0.weight"] - everything["0.weight"]).norm() > 1e-3 * everything["0.weight"].norm()


@pytest.mark.parametrize("hooked", [False, True])
def test_each_accumulated_call_has_a_direction_of_its_own(hooked: bool) -> None:
    model = net()
    if hooked:
        model[0].weight.register_hook(lambda gradient: None)
    sam = SharpnessAware(model, RADIUS)
    parts = list(zip(X.split(4), Y.split(4), strict=True))
    expected = [by_hand(model, lambda m, part=part: cross_entropy(m, *part))[1] for part in parts]
    for part in parts:
        sam.backward(lambda x, y: cross_entropy(model, x, y), *part, weight=0.25)
    mean = {name: 0.25 * (expected[0][name] + expected[1][name]) for name in expected[0]}
    torch.testing.assert_close(gradients(model), mean, **CLOSE)


def test_radius_0_is_one_plain_pass_bitwise() -> None:
    model, calls = net(), []

    def closure(x: Tensor, y: Tensor) -> Tensor:
        calls.append(len(x))
        return cross_entropy(model, x, y)

    sam = SharpnessAware(model, 0.0, sampled=2)
    loss = sam.backward(closure, X, Y)
    assert calls == [8]
    assert torch.equal(loss, cross_entropy(model, X, Y))
    assert_bitwise(gradients(model), plain_gradient(model, lambda m: cross_entropy(m, X, Y)))
    assert sam.last.to_row() == {"loss": float(loss), "radius": 0.0}


def test_a_schedule_of_the_radius_counts_calls_or_the_steps_it_is_told() -> None:
    model = net()
    sam, radii = SharpnessAware(model, lambda step: 0.1 / (1 + step)), []
    for step in (None, None, 7):
        sam.backward(lambda: cross_entropy(model, X, Y), step=step)
        radii.append(sam.last.radius)
    assert radii == [0.1, 0.05, 0.1 / 8]


@pytest.mark.parametrize("defer", [False, True])
@pytest.mark.parametrize("radius", [0.0, RADIUS])
def test_a_gradient_of_zero_gives_the_plain_gradient(radius: float, defer: bool) -> None:
    """A direction of length 0 in the drawn rows only: their inputs are 0, and the layer has no bias."""
    model = nn.Linear(3, 1, bias=False).double()
    inputs = torch.cat([torch.zeros(1, 3, dtype=torch.float64), numbers(7, 3, seed=3)])
    seed = next(seed for seed in range(100) if int(drawn_rows(8, 1, seed=seed, call=0)) == 0)
    sam = SharpnessAware(model, radius, sampled=1, seed=seed, defer_checks=defer)
    sam.backward(lambda x: model(x).square().mean(), inputs)
    assert_bitwise(gradients(model), plain_gradient(model, lambda m: m(inputs).square().mean()))
    assert sam.last.direction_norm is None if radius == 0 else float(sam.last.direction_norm) == 0


def test_sparse_gradients_and_inputs_that_require_one() -> None:
    model = nn.Sequential(nn.Embedding(7, 4, sparse=True), nn.Linear(4, 3)).double()
    dense = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 3)).double()
    dense.load_state_dict(model.state_dict())
    rows, shift = labels(8, 7, 3), torch.zeros(3, dtype=torch.float64, requires_grad=True)
    _, expected = by_hand(dense, lambda m: F.cross_entropy(m(rows) + shift.detach(), Y))
    SharpnessAware(model, RADIUS).backward(lambda: F.cross_entropy(model(rows) + shift, Y))
    found = {name: gradient.to_dense() for name, gradient in gradients(model).items()}
    torch.testing.assert_close(found, expected, **CLOSE)
    torch.testing.assert_close(shift.grad, expected["1.bias"], **CLOSE)


def test_gradients_that_share_their_memory_do_not_move_twice() -> None:
    """autograd gives both shifts one tensor, and the sum's gradient is an expanded one."""

    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (nn.Parameter(numbers(12, seed=seed)) for seed in (4, 5))
            self.scale = nn.Parameter(numbers(8, 12, seed=6))

        def forward(self, x: Tensor) -> Tensor:
            return (x + (self.first + self.second)).square().sum(1) / 12 + self.scale.sum()

    model = Shifted()
    _, expected = by_hand(model, lambda m: m(X).mean())
    SharpnessAware(model, RADIUS).backward(lambda: model(X).mean())
    torch.testing.assert_close(gradients(model), expected, **CLOSE)


# --- What a step leaves behind ---


@pytest.mark.parametrize("sampled", [None, 3])
@pytest.mark.parametrize("failing", [1, 2])
def test_parameters_are_back_bitwise_when_the_closure_raises(failing: int, sampled: int | None) -> None:
    model, calls = convolution_net(), []
    sam, before = SharpnessAware(model, RADIUS, sampled=sampled), dict(model.named_parameters())
    copies = {name: (parameter.detach().clone(), parameter.data_ptr()) for name, parameter in before.items()}

    def closure(x: Tensor, y: Tensor) -> Tensor:
        calls.append(model[0].weight.detach().clone())
        loss = cross_entropy(model, x, y)
        if len(calls) == failing:
            raise KeyError("of the user's own")
        return loss

    with pytest.raises(KeyError, match="of the user's own"):
        sam.backward(closure, *BATCHED["convolution and batch norm"].batch)
    assert len(calls) == failing
    assert failing == 1 or not torch.equal(calls[0], calls[1])
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, copies[name][0])
        assert parameter.data_ptr() == copies[name][1]
        assert parameter.grad is None
    assert sam.steps == 0
    if failing == 1:
        assert_bitwise(dict(model.named_buffers()), dict(convolution_net().named_buffers()))


def test_both_passes_over_the_whole_batch_have_the_same_masks_also_from_own_generators() -> None:
    model, masks, own = nn.Sequential(nn.Linear(12, 40), nn.Dropout(0.5), nn.Linear(40, 3)).double(), [], None
    own = torch.Generator().manual_seed(3)
    model[1].register_forward_hook(lambda module, inputs, output: masks.append(output == 0))

    def closure() -> Tensor:
        masks.append(torch.rand(5, generator=own))
        return cross_entropy(model, X, Y)

    torch.manual_seed(1)
    SharpnessAware(model, RADIUS, generators=[own]).backward(closure)
    after = torch.rand(3)
    assert torch.equal(masks[0], masks[2])
    assert torch.equal(masks[1], masks[3])
    torch.manual_seed(1)
    model(X)
    assert torch.equal(after, torch.rand(3)), "a step draws as many numbers as a plain one"


def test_the_pass_over_drawn_rows_takes_no_random_numbers_from_the_other() -> None:
    model, masks = nn.Sequential(nn.Linear(12, 40), nn.Dropout(0.5), nn.Linear(40, 3)).double(), []
    model[1].register_forward_hook(lambda module, inputs, output: masks.append(output == 0))
    torch.manual_seed(1)
    SharpnessAware(model, RADIUS, sampled=2).backward(lambda x, y: cross_entropy(model, x, y), X, Y)
    after = torch.rand(3)
    torch.manual_seed(1)
    model(X)
    assert [len(mask) for mask in masks] == [2, 8, 8]
    assert torch.equal(masks[1], masks[2])
    assert torch.equal(after, torch.rand(3))


@pytest.mark.parametrize("sampled", [None, 3])
def test_batch_norm_counts_the_whole_batch_once(sampled: int | None) -> None:
    """At ω where the direction is that of the whole batch, at the moved parameters where it is that of a part."""
    model, (x, y) = convolution_net(), BATCHED["convolution and batch norm"].batch
    at_rest, moved = copy.deepcopy(model), copy.deepcopy(model)
    at_rest(x)
    SharpnessAware(model, RADIUS, sampled=sampled).backward(lambda x, y: cross_entropy(model, x, y), x, y)
    found = dict(model.named_buffers())
    assert int(found["1.num_batches_tracked"]) == 1
    rows = drawn_rows(8, 3, seed=0, call=0)
    direction = torch.autograd.grad(cross_entropy(moved, x[rows], y[rows]), list(moved.parameters()))
    length = torch.cat([gradient.flatten() for gradient in direction]).norm()
    moved[1].reset_running_stats()
    with torch.no_grad():
        for parameter, gradient in zip(moved.parameters(), direction, strict=True):
            parameter += RADIUS / length * gradient
        moved(x)
    near, far = (dict(other.named_buffers())["1.running_mean"] for other in (at_rest, moved))
    assert (near - far).norm() > 1e-4 * near.norm()
    torch.testing.assert_close(found["1.running_mean"], near if sampled is None else far, **CLOSE)


def test_buffers_that_torch_does_not_let_anybody_write_are_no_obstacle() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net()
            with torch.inference_mode():
                self.register_buffer("inference", torch.ones(3, dtype=torch.float64))
            self.register_buffer("expanded", torch.ones((), dtype=torch.float64).expand(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) + self.expanded

    model = Shifted()
    SharpnessAware(model, RADIUS).backward(lambda: cross_entropy(model, X, Y))
    assert model.inner[0].weight.grad.norm() > 0


@pytest.mark.parametrize("sampled", [None, 3])
def test_a_graph_of_the_user_s_own_stays_usable(sampled: int | None) -> None:
    """As that of a generator through a discriminator, whose step comes first."""
    model, x = convolution_net().eval(), numbers(8, 2, 4, 4, seed=1).requires_grad_()
    (expected,) = torch.autograd.grad(model(x).square().sum(), x)
    pending = model(x).square().sum()
    SharpnessAware(model, RADIUS, sampled=sampled).backward(lambda a, b: cross_entropy(model, a, b), x.detach(), Y)
    (found,) = torch.autograd.grad(pending, x)
    assert torch.equal(found, expected)


def test_hooks_see_one_final_gradient_with_parameters_back_in_place() -> None:
    model, seen = net(), []
    before = model[0].weight.detach().clone()
    model[0].weight.register_hook(lambda gradient: seen.append((gradient.clone(), model[0].weight.detach().clone())))
    stepped = []
    for parameter in model[2].parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: stepped.append(parameter.detach().clone()))
    held = [parameter.detach().clone() for parameter in model[2].parameters()]
    _, expected = by_hand(net(), lambda m: cross_entropy(m, X, Y))
    SharpnessAware(model, RADIUS).backward(lambda: cross_entropy(model, X, Y))
    ((gradient, weight),) = seen
    torch.testing.assert_close(gradient, expected["0.weight"], **CLOSE)
    assert torch.equal(weight, before)
    assert len(stepped) == 2
    assert all(any(torch.equal(one, other) for other in held) for one in stepped)


def test_an_optimizer_inside_backward_updates_the_parameters_for_good() -> None:
    model = net()
    _, expected = by_hand(model, lambda m: cross_entropy(m, X, Y))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    def update(parameter: Tensor) -> None:
        parameter.data.sub_(0.1 * parameter.grad)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    SharpnessAware(model, RADIUS).backward(lambda: cross_entropy(model, X, Y))
    found = {name: parameter.detach() for name, parameter in model.named_parameters()}
    torch.testing.assert_close(found, {name: before[name] - 0.1 * expected[name] for name in before}, **CLOSE)


def test_frozen_layers_stay_frozen_and_may_thaw() -> None:
    model = net()
    model[0].requires_grad_(False)
    sam = SharpnessAware(model, RADIUS)
    sam.backward(lambda: cross_entropy(model, X, Y))
    assert model[0].weight.grad is None
    model.zero_grad()
    model[0].requires_grad_(True)
    _, expected = by_hand(model, lambda m: cross_entropy(m, X, Y))
    sam.backward(lambda: cross_entropy(model, X, Y))
    torch.testing.assert_close(gradients(model), expected, **CLOSE)


def test_a_recorder_does_not_take_these_gradients_for_plain_ones() -> None:
    model = net()
    for radius in (0.0, RADIUS):
        recorder, sam = Recorder(model, batch_size=8, train_size=64, every=2, window=2), SharpnessAware(model, radius)
        with pytest.raises(InputError, match="are those of SharpnessAware") if radius else nullcontext():
            for _ in range(2):
                model.zero_grad()
                sam.backward(lambda: cross_entropy(model, X, Y))
                recorder.after_backward()
        assert len(recorder.rows) == (radius == 0)


# --- Batches, models, precision ---


def test_dicts_and_dataclasses_of_tensors_have_their_rows_drawn() -> None:
    @dataclass
    class Targets:
        y: Tensor
        name: str

    model, seen = net(), []

    def closure(batch: dict[str, Any]) -> Tensor:
        seen.append(batch)
        return cross_entropy(model, batch["x"], batch["targets"].y)

    batch = {"x": X, "targets": Targets(Y, "t"), "number": 3}
    SharpnessAware(model, RADIUS, sampled=3, seed=2).backward(closure, batch)
    drawn = drawn_rows(8, 3, seed=2, call=0)
    assert torch.equal(seen[0]["x"], X[drawn])
    assert torch.equal(seen[0]["targets"].y, Y[drawn])
    assert seen[0]["number"] == 3
    assert seen[1] is batch


def test_checkpointed_models_are_exact() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net()

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, x, use_reentrant=False)

    model = Checkpointed()
    _, expected = by_hand(model.inner, lambda m: cross_entropy(m, X, Y), lambda m: cross_entropy(m, X[:4], Y[:4]))
    seed = 0
    sam = SharpnessAware(model, RADIUS, sampled=4, seed=seed)
    order = drawn_rows(8, 4, seed=seed, call=0)
    rest = torch.tensor([row for row in range(8) if row not in order.tolist()])
    mixed = torch.cat([order, rest]).argsort()  # so that the rows that are drawn are the first four of X
    sam.backward(lambda x, y: cross_entropy(model, x, y), X[mixed], Y[mixed])
    found = {name.removeprefix("inner."): value for name, value in gradients(model).items()}
    torch.testing.assert_close(found, expected, **CLOSE)


def test_a_compiled_model_stays_compiled_and_sees_the_move() -> None:
    model, graphs = net(), []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)

        def run(*arguments: Tensor) -> Any:
            runs.append(1)
            return graph(*arguments)

        return run

    _, expected = by_hand(model, lambda m: cross_entropy(m, X, Y))
    compiled, runs = torch.compile(model, backend=backend), []
    for _ in range(2):
        model.zero_grad()
        SharpnessAware(model, RADIUS).backward(lambda: cross_entropy(compiled, X, Y))
        torch.testing.assert_close(gradients(model), expected, **CLOSE)
    assert len(runs) == 4
    assert len(graphs) == 1


def test_fused_attention_stays_fused(caplog: pytest.LogCaptureFixture) -> None:
    """The penalty needs a second derivative and switches to the MATH backend, which it logs; this needs none."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True).double()
    inputs = numbers(4, 5, 8, seed=1)
    _, expected = by_hand(layer, lambda m: m(inputs).square().mean())
    SharpnessAware(layer, RADIUS).backward(lambda: layer(inputs).square().mean())
    torch.testing.assert_close(gradients(layer), expected, rtol=1e-10, atol=1e-10)
    assert not caplog.records


@pytest.mark.parametrize("ambient", [False, True])
def test_autocast_uses_the_moved_weights_in_the_second_pass(ambient: bool) -> None:
    """Inside one autocast context torch keeps half-precision copies of the weights, which know of no move."""
    model = spread(wide_net())

    def loss(model: nn.Module) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(X.float())
        return F.cross_entropy(outputs.float(), Y)

    value, expected = by_hand(model, loss, radius=1.0)
    with torch.autocast("cpu", torch.bfloat16, enabled=ambient):
        found = SharpnessAware(model, 1.0).backward(lambda: loss(model))
    torch.testing.assert_close(found, value)
    torch.testing.assert_close(gradients(model), expected)
    assert not torch.allclose(value, loss(model), rtol=1e-2)


def in_float16(model: nn.Module, factor: float = 1.0) -> Tensor:
    with torch.autocast("cpu", torch.float16):
        outputs = model(X.float())
    return factor * F.cross_entropy(outputs.float(), Y)


@pytest.mark.parametrize("as_tensor", [False, True])
def test_with_a_grad_scaler_the_step_is_the_one_without(as_tensor: bool) -> None:
    """The loss is 1e-6 of one: unscaled, its gradients would be 0 in float16, and there would be no direction."""
    model = spread(wide_net())
    scaler, optimizer = torch.amp.GradScaler("cpu", init_scale=2.0**16), torch.optim.SGD(model.parameters(), lr=0.0)
    sam = SharpnessAware(model, RADIUS)
    if as_tensor:
        scaler.scale(sam.loss(lambda: in_float16(model, 1e-6), scaler=scaler)).backward()
    else:
        sam.backward(lambda: in_float16(model, 1e-6), scaler=scaler)
    _, expected = by_hand(model, lambda m: in_float16(m))
    scaler.unscale_(optimizer)
    found = torch.cat([gradient.flatten() for gradient in gradients(model).values()]) * 1e6
    truth = torch.cat([gradient.flatten() for gradient in expected.values()])
    assert (found - truth).norm() < 0.01 * truth.norm()
    direction = torch.autograd.grad(in_float16(model), list(model.parameters()))
    length = 1e-6 * torch.cat([gradient.flatten() for gradient in direction]).norm()
    assert float(sam.last.direction_norm) == pytest.approx(float(length), rel=0.01)


@pytest.mark.parametrize("defer", [False, True])
@pytest.mark.parametrize("sampled", [None, 3])
def test_where_the_direction_overflows_the_scaler_skips_the_step(sampled: int | None, defer: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    before, x, y = values(model), X.float(), Y
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=1e-4), torch.amp.GradScaler("cpu", init_scale=2.0**16)
    sam, losses = SharpnessAware(model, RADIUS, sampled=sampled, defer_checks=defer), []

    def closure(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.float16):
            outputs = model(x)
        losses.append(100 * F.cross_entropy(outputs.float(), y))
        return losses[-1]

    loss = sam.backward(closure, x, y, scaler=scaler)
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**15
    assert not torch.isfinite(sam.last.direction_norm)
    assert_bitwise(values(model), before)
    assert torch.equal(loss, losses[-1].detach())
    assert torch.isfinite(loss)
    for _ in range(20):
        optimizer.zero_grad()
        sam.backward(closure, x, y, scaler=scaler)
        scaler.step(optimizer)
        scaler.update()
    assert torch.isfinite(sam.last.direction_norm)
    assert not torch.equal(model[0].weight, before["0.weight"])


def test_a_direction_that_only_its_rows_make_infinite_still_skips_the_step() -> None:
    """At n < B the gradient of the whole batch may be finite where that of the drawn rows is not."""
    model = nn.Linear(3, 1, bias=False)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)

    def closure(x: Tensor) -> Tensor:
        return model(x).square().mean().sqrt() if len(x) == 1 else model(x).square().mean()

    inputs = torch.cat([torch.zeros(1, 3), torch.ones(7, 3)])
    seed = next(seed for seed in range(100) if int(drawn_rows(8, 1, seed=seed, call=0)) == 0)
    SharpnessAware(model, RADIUS, sampled=1, seed=seed).backward(closure, inputs, scaler=scaler)
    assert not model.weight.grad.isfinite().any()


def test_without_a_scaler_a_direction_that_is_not_finite_is_an_error() -> None:
    model = nn.Linear(3, 1)
    zeros = torch.zeros(4, 3)

    def closure() -> Tensor:
        return (model(zeros) - model.bias).square().sum().sqrt()

    before = values(model)
    with pytest.raises(InputError, match="gradient of the direction has the length nan; expected a finite number"):
        SharpnessAware(model, RADIUS).backward(closure)
    assert_bitwise(values(model), before)
    deferred = SharpnessAware(model, RADIUS, defer_checks=True)
    deferred.backward(closure)
    assert_bitwise(values(model), before)
    with pytest.raises(InputError, match="a loss was not finite at step 0 or after it"):
        _ = deferred.last


def test_a_loss_that_is_not_finite_is_an_error() -> None:
    model = nn.Linear(3, 1)
    with pytest.raises(InputError, match="the loss is inf; expected a finite number"):
        SharpnessAware(model, RADIUS).backward(lambda: model(torch.ones(4, 3)).square().sum() * torch.inf)


@pytest.mark.parametrize("sampled", [None, 3])
def test_deferred_checks_change_no_number(sampled: int | None) -> None:
    found = []
    for defer in (False, True):
        model = net()
        sam = SharpnessAware(model, RADIUS, sampled=sampled, defer_checks=defer)
        sam.backward(lambda x, y, m=model: cross_entropy(m, x, y), X, Y)
        found.append(gradients(model))
    torch.testing.assert_close(*found, **CLOSE)


class Reads(TorchDispatchMode):
    """Counts what would wait for a device: numbers of tensors that Python reads, and comparisons of whole tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += str(function) in ("aten._local_scalar_dense.default", "aten.equal.default")
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("sampled", [None, 3])
@pytest.mark.parametrize("defer", [True, False])
def test_where_checks_are_deferred_no_step_waits_for_the_device(defer: bool, sampled: int | None) -> None:
    model, (x, y) = convolution_net(), BATCHED["convolution and batch norm"].batch
    sam = SharpnessAware(model, RADIUS, sampled=sampled, defer_checks=defer)
    for _ in range(2):  # the first step looks at more
        with Reads() as reads:
            sam.backward(lambda x, y: cross_entropy(model, x, y), x, y)
    assert (reads.count == 0) == defer


def test_complex_parameters_move_along_their_gradient() -> None:
    model = nn.Linear(3, 2, bias=False).to(torch.complex128)
    x = torch.complex(numbers(4, 3, seed=1), numbers(4, 3, seed=2))

    def loss(model: nn.Module) -> Tensor:
        return (model(x).abs().square() + model(x).real).mean()

    twin = copy.deepcopy(model)
    (gradient,) = torch.autograd.grad(loss(twin), [twin.weight])
    with torch.no_grad():
        twin.weight += RADIUS * gradient / torch.view_as_real(gradient).norm()
    loss(twin).backward()
    SharpnessAware(model, RADIUS).backward(lambda: loss(model))
    torch.testing.assert_close(model.weight.grad, twin.weight.grad, **CLOSE)


# --- `loss`, the record, resuming ---


@pytest.mark.parametrize("sampled", [None, 3])
def test_the_loss_as_a_tensor_hands_out_the_same_gradient_times_any_factor(sampled: int | None) -> None:
    model, twin = net(), net()
    SharpnessAware(twin, RADIUS, sampled=sampled).backward(lambda x, y: cross_entropy(twin, x, y), X, Y)
    loss = SharpnessAware(model, RADIUS, sampled=sampled).loss(lambda x, y: cross_entropy(model, x, y), X, Y)
    assert all(parameter.grad is None for parameter in model.parameters())
    (loss / 4).backward()
    assert_bitwise({name: 4 * value for name, value in gradients(model).items()}, gradients(twin))


def test_without_grad_mode_the_loss_is_the_plain_one_and_backward_is_refused() -> None:
    model = net()
    sam = SharpnessAware(model, RADIUS)
    with torch.no_grad():
        assert torch.equal(sam.loss(lambda x, y: cross_entropy(model, x, y), X, Y), cross_entropy(model, X, Y))
        with pytest.raises(InputError, match=r"sam\.backward was called without grad mode"):
            sam.backward(lambda: cross_entropy(model, X, Y))
    assert sam.steps == 0


def test_the_record_tells_radius_length_and_rows() -> None:
    model = net()
    sam = SharpnessAware(model, RADIUS, sampled=3)
    loss = sam.backward(lambda x, y: cross_entropy(model, x, y), X, Y, weight=0.5)
    rows = drawn_rows(8, 3, seed=0, call=0)
    direction = torch.autograd.grad(cross_entropy(model, X[rows], Y[rows]), list(model.parameters()))
    length = float(torch.cat([gradient.flatten() for gradient in direction]).norm())
    assert sam.last.to_row() == pytest.approx(
        {"loss": float(loss), "radius": RADIUS, "direction_norm": length, "rows": 3.0}
    )
    assert repr(sam) == ("SharpnessAware(Sequential with 419 parameters that move, radius=0.1, sampled=3, steps=1)")


def trained(steps: int, model: nn.Module, sam: SharpnessAware, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        sam.backward(lambda x, y: cross_entropy(model, x, y), X, Y)
        optimizer.step()


def test_a_resumed_run_ends_with_the_same_bits() -> None:
    def start(seed: int) -> tuple[nn.Module, SharpnessAware, torch.optim.Optimizer]:
        model = net()
        sam = SharpnessAware(model, lambda step: RADIUS / (1 + step / 100), sampled=2, seed=seed)
        return model, sam, torch.optim.SGD(model.parameters(), lr=0.05)

    whole, first, second = start(3), start(3), start(4)
    trained(200, *whole)
    trained(100, *first)
    state = first[1].state_dict()
    assert state == {"steps": 100, "seed": 3}
    second[0].load_state_dict(first[0].state_dict())
    second[1].load_state_dict(state)
    trained(100, *second)
    assert_bitwise(values(second[0]), values(whole[0]))
    trained(100, *first)
    assert_bitwise(values(first[0]), values(whole[0]))
    other = start(4)
    trained(200, *other)
    assert not torch.equal(other[0][0].weight, whole[0][0].weight), "the seed decides which rows are drawn"


# --- Refusals ---


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_parameters_are_refused_also_later(dtype: torch.dtype) -> None:
    model = net().float()
    sam = SharpnessAware(model, RADIUS)
    model.to(dtype)
    with pytest.raises(InputError, match=rf"'0.weight' is in {dtype}.*Keep parameters in float32.*autocast"):
        sam.backward(lambda: cross_entropy(model, X.to(dtype), Y))
    excluded = SharpnessAware(model.float(), RADIUS, exclude=["0.*"])
    model[0].to(dtype)
    excluded.backward(lambda: F.cross_entropy(model[2:](model[1](model[0](X.to(dtype))).float()), Y))


def test_a_schedule_that_gives_no_radius_is_refused() -> None:
    model = net()
    with pytest.raises(InputError, match=r"radius=-1\.0; expected a finite number that is not negative"):
        SharpnessAware(model, lambda step: -1.0).backward(lambda: cross_entropy(model, X, Y))


@pytest.mark.parametrize("call", ["backward", "loss"])
def test_rows_of_a_closure_without_a_batch_cannot_be_drawn(call: str) -> None:
    model = net()
    sam = SharpnessAware(model, RADIUS, sampled=3)
    sentence = f"sampled=3 but got no batch; expected {call}(closure, inputs, targets) with a closure of two arguments."
    with pytest.raises(InputError, match=re.escape(sentence)):
        getattr(sam, call)(lambda: cross_entropy(model, X, Y))
    with pytest.raises(InputError, match=r"lengths \[7, 8\]; expected one length"):
        getattr(sam, call)(lambda x, y: cross_entropy(model, x, y), X[:7], Y)
    with pytest.raises(InputError, match=f"{call} got a Tensor; expected a function"):
        getattr(sam, call)(torch.zeros(()))


def test_a_loss_of_other_parameters_is_refused() -> None:
    model, other = net(), net()
    with pytest.raises(InputError, match="the loss depends on none of the parameters that move"):
        SharpnessAware(model, RADIUS).backward(lambda: cross_entropy(other, X, Y))


@pytest.mark.parametrize("known", [True, False])
def test_a_loss_that_is_scaled_inside_the_closure_is_refused(known: bool) -> None:
    model, scaler = net(), torch.amp.GradScaler("cpu")
    with pytest.raises(InputError, match=r"scaler\.scale has multiplied, which scales what backward returns"):
        SharpnessAware(model, RADIUS).backward(
            lambda: scaler.scale(cross_entropy(model, X, Y)), scaler=scaler if known else None
        )


def test_a_scaler_that_divides_what_it_never_multiplied_is_refused() -> None:
    model, scaler = net().float(), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    SharpnessAware(model, RADIUS).backward(lambda: cross_entropy(model, X.float(), Y))
    scaler.scale(torch.zeros(()))
    with pytest.raises(
        InputError, match=r"sam\.backward did not multiply.*Use sam\.backward\(closure, scaler=scaler\)"
    ):
        scaler.step(optimizer)


def test_a_closure_that_writes_into_a_batch_that_it_sees_twice_is_refused() -> None:
    model, x = net(), X.clone()

    def closure(x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model, x.div_(2), y)

    _, expected = by_hand(
        model,
        lambda m: cross_entropy(m, X / 2, Y),
        lambda m: cross_entropy(m, X[drawn_rows(8, 3, seed=0, call=0)] / 2, Y[drawn_rows(8, 3, seed=0, call=0)]),
    )
    SharpnessAware(model, RADIUS, sampled=3).backward(closure, x, Y)  # drawn rows are copies
    torch.testing.assert_close(gradients(model), expected, **CLOSE)
    model.zero_grad(set_to_none=True)
    with pytest.raises(InputError, match="the closure wrote into a tensor of the batch, which it sees twice"):
        SharpnessAware(model, RADIUS).backward(closure, x, Y)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_reentrant_checkpointing_is_refused() -> None:
    model, x = net(), X.clone().requires_grad_()
    with pytest.raises(InputError, match="re-entrant checkpointing"):
        SharpnessAware(model, RADIUS).backward(lambda: F.cross_entropy(checkpoint(model, x, use_reentrant=True), Y))
