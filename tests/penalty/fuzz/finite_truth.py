"""The penalised gradient by central differences of plain gradients, in float64: no second derivative is asked of torch.

    ∇( ½(Ĉᵃ + Ĉᵇ) + (λ/4)⟨∇Ĉᵃ, ∇Ĉᵇ⟩ ) = ½(gᵃ + gᵇ) + (λ/4)(Hᵃ gᵇ + Hᵇ gᵃ),   H g = lim (g(ω + sg) − g(ω − sg)) / 2s

over the leaves, where ω + sg moves the penalised parameters only; one view has a = b. Of the package only the numbers
of drawn rows are used.

Where the loss is no mean over rows, the plain part is the gradient of the whole batch's loss (`no_row_means`), and the
penalty that of its micro-batches. So it is where these are drawn (`sampled`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from random_scenarios import Scenario, Setup, set_up
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from tacit.penalty.pieces import drawn_rows

Vector = dict[str, Tensor]


@dataclass(frozen=True)
class Start:
    """What a pass finds: torch's generator, and buffers that the passes before it may have written."""

    random_state: Tensor
    buffers: Vector


@dataclass(frozen=True)
class Truth:
    """What a penalised step must leave behind."""

    plain: Vector  # gradients of the mean loss, weighted as the calls are
    penalty: Vector  # the penalty's part
    penalty_size: float  # the sum of the norms of its pieces: what relative errors of calls and micro-batches refer to
    losses: list[float]  # of each call
    squared_norms: list[float]  # ‖∇Ĉ‖² (or ⟨∇Ĉᵃ, ∇Ĉᵇ⟩) of each call, mean over its micro-batches
    curvatures: list[float]  # ⟨∇Ĉ, ∇²Ĉ ∇Ĉ⟩ of each call, mean over its micro-batches; of no use with two views
    penalty_norms: list[float]  # ‖(λ/2) ∇²Ĉ ∇Ĉ‖ over the penalised parameters, root of the mean square over those
    reached: bool  # whether the loss depends on a penalised parameter
    sure: bool  # whether two widths of the difference agree; they do not where a kink lies between the points
    whole: frozenset[int]  # calls whose plain part is that of the whole batch
    decided: bool  # whether it is clear which calls these are
    buffers: Vector  # after a plain step
    random_state: Tensor


def norm_of(vector: Vector) -> float:
    return float(sum(float(real(part).double().square().sum()) for part in vector.values())) ** 0.5


def real(tensor: Tensor) -> Tensor:
    """Complex numbers as pairs."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def difference(left: Vector, right: Vector) -> Vector:
    return {name: real(left[name]).double() - real(right[name]).double() for name in left}


def truth(scenario: Scenario, *, careful: bool = False, every_call: bool = True) -> Truth:
    """The oracle; `careful` compares two widths of the difference and says whether they agree.

    `every_call` says whether each call may show that the loss is no mean over rows, or the first one only.
    """
    whole, decided = no_row_means(scenario, every_call=every_call)
    plain_setup = set_up(scenario)
    starts, buffers, random_state = plain_steps(plain_setup, whole)
    double = in_float64(set_up(scenario))
    plain, penalty = zeros(double), zeros(double)
    losses, squared_norms, curvatures, penalty_norms = [], [], [], []
    reached, sure, size = False, True, 0.0
    for call in range(scenario.calls):
        loss = squared = curvature = squared_part = 0.0
        pieces = scenario.pieces
        if call in whole:
            loss, g = gradient(double, double.batches[call], starts[call, 0, 0])
            add(plain, g, 1 / scenario.calls)
        for piece in range(pieces):
            views = [double.batches, double.others][: 1 + scenario.two_views]
            batches = [piece_of(scenario, view[call], call, piece) for view in views]
            states = [starts[call, piece, number] for number in range(len(views))]
            found = [gradient(double, b, s) for b, s in zip(batches, states, strict=True)]
            weight = 1 / (scenario.calls * pieces)
            for value, g in found if call not in whole else []:
                loss += value / (len(found) * pieces)
                add(plain, g, weight / len(found))
            first, last = found[0][1], found[-1][1]
            chosen = [name for name in double.penalised() if name in first]
            reached |= bool(chosen)
            squared += sum(float((first[n] * last[n]).sum()) for n in chosen if n in last) / pieces
            for number, batch in enumerate(batches):
                direction = {n: found[-1 - number][1][n] for n in double.penalised() if n in found[-1 - number][1]}
                product, agreed = curvature_product(double, batch, states[number], direction, careful)
                sure &= agreed
                along = [n for n in direction if n in product]
                curvature += sum(float((direction[n] * product[n]).sum()) for n in along) / pieces
                inside = norm_of({n: product[n] for n in double.penalised() if n in product})
                squared_part += (scenario.strength / 2 * inside) ** 2 / pieces
                size += weight * scenario.strength / 2 / len(batches) * norm_of(product)
                add(penalty, product, weight * scenario.strength / 2 / len(batches))
        losses.append(loss)
        squared_norms.append(squared)
        curvatures.append(curvature)
        penalty_norms.append(squared_part**0.5)
    return Truth(
        plain, penalty, size, losses, squared_norms, curvatures, penalty_norms, reached, sure, whole, decided, buffers,
        random_state,
    )  # fmt: skip


def no_row_means(scenario: Scenario, *, every_call: bool) -> tuple[frozenset[int], bool]:
    """The calls whose plain part is that of the whole batch: from the first at which gradients show that it must be.

    In float64 and evaluation mode, where nothing draws random numbers; `False` beside them where a distance is near
    what the package tolerates.
    """
    if scenario.micro_batches == 1:
        return frozenset(), True
    if scenario.sampled is not None:
        return frozenset(range(scenario.calls)), True
    unit, tolerance = {"float64": (2e-16, 1e-6), "float32": (1e-7, 2e-3), "autocast": (8e-3, 0.1)}[scenario.dtype]
    double = in_float64(set_up(scenario))
    double.model.eval()
    start = Start(torch.get_rng_state(), buffers_of(double))
    for call in range(scenario.calls if every_call else 1):
        batch, pieces = double.batches[call], scenario.micro_batches
        _, together = gradient(double, batch, start)
        if not torch.equal(torch.get_rng_state(), start.random_state):  # the package checks no closure that draws
            return frozenset(), True
        parts = [gradient(double, slice_of(batch, piece, pieces), start)[1] for piece in range(pieces)]
        mean, apart, sizes = zeros(double), {}, {}
        for part in parts:
            add(mean, part, 1 / pieces)
        for name, leaf in double.trainable().items():
            own = together.get(name, real(torch.zeros_like(leaf))).detach()
            apart[name] = float((own - mean[name]).norm())
            sizes[name] = max(
                float(own.norm()), sum(float(part[name].norm()) for part in parts if name in part) / pieces
            )
        size = sum(value**2 for value in sizes.values()) ** 0.5
        ratios = [sum(value**2 for value in apart.values()) ** 0.5 / (tolerance * size or 1e-300)]
        ratios += [apart[name] / (max(tolerance * sizes[name], 1000 * unit * size) or 1e-300) for name in apart]
        if max(ratios) > 1 / 3:
            return frozenset(range(call, scenario.calls)), max(ratios) > 3
    return frozenset(), True


def plain_steps(
    setup: Setup, whole: frozenset[int] = frozenset()
) -> tuple[dict[tuple[int, int, int], Start], Vector, Tensor]:
    """Ordinary forward and backward passes in the order of the penalty's: generator states, buffers at the end.

    A pass of the whole batch is the one that counts, where there is one.
    """
    starts = {}
    scenario = setup.scenario
    torch.manual_seed(scenario.seed)
    for call in range(scenario.calls):
        before = Start(torch.get_rng_state(), buffers_of(setup))
        for piece in range(scenario.pieces):
            losses = []
            for number, view in enumerate([setup.batches, setup.others][: 1 + scenario.two_views]):
                starts[call, piece, number] = Start(torch.get_rng_state(), buffers_of(setup))
                losses.append(setup.closure(*piece_of(scenario, view[call], call, piece)))
            (losses[0] if len(losses) == 1 else torch.stack(losses).mean()).backward()
        if call in whole:
            torch.set_rng_state(before.random_state)
            put_buffers(setup, before.buffers)
            setup.closure(*setup.batches[call]).backward()
    return starts, buffers_of(setup), torch.get_rng_state()


def buffers_of(setup: Setup) -> Vector:
    return {name: buffer.clone() for name, buffer in setup.model.named_buffers()}


def put_buffers(setup: Setup, values: Vector) -> None:
    with torch.no_grad():
        for name, buffer in setup.model.named_buffers():
            buffer.copy_(values[name])


def in_float64(setup: Setup) -> Setup:
    """The same models and data in float64, without autocast."""
    if setup.scenario.dtype == "float64":
        return setup
    setup.scenario = replace(setup.scenario, dtype="float64")
    setup.model.double()
    for parameter in setup.model.parameters():
        if parameter.is_complex():
            parameter.data = parameter.data.to(torch.complex128)
    if setup.encoder is not None:
        setup.encoder.double()

    def double(batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        first = batch[0]
        if not first.is_floating_point():
            return batch
        return (first.detach().double().requires_grad_(first.requires_grad), batch[1])

    setup.batches = [double(batch) for batch in setup.batches]
    setup.others = [double(batch) for batch in setup.others]
    return setup


def piece_of(scenario: Scenario, batch: tuple[Tensor, ...], call: int, piece: int) -> tuple[Tensor, ...]:
    """The penalised micro-batch of that number."""
    if scenario.sampled is None:
        return slice_of(batch, piece, scenario.micro_batches)
    rows, size = len(batch[0]), len(batch[0]) // scenario.micro_batches
    numbers = drawn_rows(rows, scenario.sampled * size, seed=scenario.seed, call=call).tolist()
    chosen = numbers[piece * size : (piece + 1) * size]
    return tuple(torch.cat([tensor[row : row + 1] for row in chosen]) for tensor in batch)


def slice_of(batch: tuple[Tensor, ...], piece: int, pieces: int) -> tuple[Tensor, ...]:
    if pieces == 1:
        return batch
    size = len(batch[0]) // pieces
    return tuple(tensor[piece * size : (piece + 1) * size] for tensor in batch)


def gradient(setup: Setup, batch: tuple[Tensor, ...], start: Start) -> tuple[float, Vector]:
    """The loss and its gradient for every leaf that it reaches, complex ones as pairs; buffers stay as they were."""
    saved = buffers_of(setup)
    put_buffers(setup, start.buffers)
    torch.set_rng_state(start.random_state)
    loss = setup.closure(*batch)
    leaves = setup.trainable()
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    put_buffers(setup, saved)
    return float(loss.detach()), {n: real(g) for n, g in zip(leaves, found, strict=True) if g is not None}


def curvature_product(
    setup: Setup, batch: tuple[Tensor, ...], start: Start, direction: Vector, careful: bool
) -> tuple[Vector, bool]:
    """H along the direction, and whether two widths agree to a tenth of what the tests allow.

    In float64 a width of 1e-5 has truncation 1e-10 and rounding 1e-11; a narrower one is tried where a kink may lie
    between the two points.
    """
    length = norm_of(direction)
    if length == 0.0:
        return {}, True
    previous = None
    for width in (1e-5, 2e-6, 2e-7, 3e-8):
        ahead, behind = (moved_gradient(setup, batch, start, direction, sign * width / length) for sign in (1, -1))
        product = {name: (ahead[name] - behind[name]) / (2 * width / length) for name in ahead if name in behind}
        if not careful:
            return product, True
        if previous is not None:
            apart, size = norm_of(difference(previous, product)), norm_of(product)
            if apart <= 1e-7 * size + 1e-9 * length:
                return previous, True
        previous = product
    return previous or {}, False


def moved_gradient(setup: Setup, batch: tuple[Tensor, ...], start: Start, direction: Vector, by: float) -> Vector:
    parameters = dict(setup.model.named_parameters())
    originals = {name: parameters[name].detach().clone() for name in direction}
    with torch.no_grad():
        for name, step in direction.items():
            real(parameters[name]).add_(step, alpha=by)
    try:
        return gradient(setup, batch, start)[1]
    finally:
        with torch.no_grad():
            for name, original in originals.items():
                parameters[name].copy_(original)


def zeros(setup: Setup) -> Vector:
    return {
        name: torch.zeros_like(real(leaf.detach()), dtype=torch.float64) for name, leaf in setup.trainable().items()
    }


def add(total: Vector, part: Vector, weight: float) -> None:
    for name, tensor in part.items():
        total[name] += weight * real(tensor.detach())


def double_backward(
    setup: Setup, starts: dict[tuple[int, int, int], Start], whole: frozenset[int] = frozenset()
) -> Vector:
    """The same gradient by torch's second derivatives, in the scenario's own precision: how far rounding alone goes.

    Raises what torch raises where it has no second derivative.
    """
    scenario, leaves, total = setup.scenario, setup.trainable(), zeros(setup)
    weight = 1 / (scenario.calls * scenario.pieces)
    for call in whole:
        add(total, gradient(setup, setup.batches[call], starts[call, 0, 0])[1], 1 / scenario.calls)
    for (call, piece, number), start in starts.items():
        if number:
            continue
        views = [setup.batches, setup.others][: 1 + scenario.two_views]
        losses, gradients = [], []
        chosen = [leaves[name] for name in setup.penalised()]
        torch.set_rng_state(start.random_state)
        put_buffers(setup, start.buffers)
        with sdpa_kernel(SDPBackend.MATH):
            for view in views:
                losses.append(setup.closure(*piece_of(scenario, view[call], call, piece)))
                found = torch.autograd.grad(losses[-1], chosen, create_graph=True, allow_unused=True)
                gradients.append(found)
            pairs = [
                (a, b) for a, b in zip(gradients[0], gradients[-1], strict=True) if a is not None and b is not None
            ]
            norm = sum(((real(a) * real(b)).sum() for a, b in pairs), torch.zeros(()))
            own = 0.0 if call in whole else 1.0
            objective = own * torch.stack(losses).mean()
            if scenario.strength:
                objective = objective + scenario.strength / 4 * norm
            parts = torch.autograd.grad(objective, list(leaves.values()), allow_unused=True)
        add(total, {name: part for name, part in zip(leaves, parts, strict=True) if part is not None}, weight)
    return total
