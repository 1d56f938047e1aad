"""One scenario under one method, judged by the oracle: exact, approximate within its stated error, or refused."""

from __future__ import annotations

import contextlib
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from finite_truth import Truth, Vector, difference, double_backward, norm_of, plain_steps, real, truth
from hypothesis import HealthCheck, Phase, settings
from random_scenarios import Scenario, Setup, set_up
from torch import Tensor

from tacit import FactoredSGD, GradientPenalty, InputError
from tacit.penalty import PenaltyRecord, registry

SEARCH = settings(
    deadline=None, database=None, phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck)
)
APPROXIMATE = ("finite_difference",)
# hardswish, hardsigmoid, hardswish in place
ROUNDED_SIXTHS = ("Op('curve', 4, 11)", "Op('curve', 4, 12)", "Op('curve_in_place', 4, 6)")
LARGEST_ERROR = 0.1  # of an approximate step, by its own estimate
NEVER_REFUSE = ("gram", "double_backward", "auto", "loss", "FactoredSGD")  # what torch can differentiate twice


@dataclass(frozen=True)
class Verdict:
    """`kind` is "exact", "approximate", "refused", "undecided" (the oracle has a kink), "invalid" (a plain step fails
    too), or a failure: "wrong", "traceback", "state" (buffers, generators, parameters, hooks)."""

    kind: str
    detail: str = ""

    @property
    def failed(self) -> bool:
        return self.kind in ("wrong", "traceback", "state")


def tolerance(scenario: Scenario) -> tuple[float, float]:
    """What is allowed, relative to the penalty's part of the gradient and to the plain gradient.

    float64: the oracle's central differences are good to 1e-8 or so, a missing term is larger than 1e-4. float32: a
    unit of 6e-8 per operation, some tens of operations deep, and differences of products of order one. bfloat16: a unit
    of 2⁻⁸, some ten operations deep; where examples cancel it is more, which `rounding` measures. torch's hardsigmoid
    and hardswish multiply with 1/6 rounded to float32, 3e-8 off, in float64 too; written out they do not.
    """
    of_plain = 1e-7 if any(sixth in repr(scenario.ops) for sixth in ROUNDED_SIXTHS) else 1e-8
    return {"float64": (2e-6, of_plain), "float32": (2e-2, 2e-4), "autocast": (0.1, 0.02)}[scenario.dtype]


def rounding(scenario: Scenario, found: Truth) -> float:
    """How far torch's own second derivatives in the scenario's precision are from the float64 truth.

    Where torch has none (hardsigmoid), how far its plain gradient is.
    """
    starts, *_ = plain_steps(set_up(scenario))
    try:
        own = double_backward(set_up(scenario), starts, found.whole)
    except RuntimeError:
        plain = replace(scenario, strength=0.0)
        return norm_of(difference(double_backward(set_up(plain), starts, found.whole), found.plain))
    return norm_of(difference(own, {name: found.plain[name] + found.penalty[name] for name in own}))


def judge(scenario: Scenario, method: str) -> Verdict:
    """Runs the scenario with the method, and compares all that it leaves behind."""
    if method == "FactoredSGD":
        scenario = replace(scenario, exclude=(), calls=1, two_views=False)  # it has none of these
    if method == "gram" and scenario.two_views:  # refused, as `test_gram_refuses_two_views` has it
        scenario = replace(scenario, two_views=False)
    try:
        plain_steps(set_up(scenario))
    except (RuntimeError, ValueError) as error:
        return Verdict("invalid", f"{type(error).__name__}: {error}")
    found = truth(scenario, every_call=checks_every_call(scenario, method))
    if not found.decided:
        return Verdict("undecided")
    if not all(torch.isfinite(part).all() for part in [*found.plain.values(), *found.penalty.values()]):
        return Verdict("invalid", "not finite")
    setup = set_up(scenario)
    calls: Counter[str] = Counter()
    for name, leaf in setup.trainable().items():
        leaf.register_hook(lambda gradient, name=name: calls.update([name]))
    before = {name: parameter.detach().clone() for name, parameter in setup.model.named_parameters()}
    torch.manual_seed(scenario.seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = run(setup, method)
    except InputError as error:
        return refusal(str(error), found, scenario, method)
    except Exception as error:
        lines = traceback.format_exception(error)
        return Verdict("traceback", f"{type(error).__name__}: {error}\n{''.join(lines[-3:])}")
    wrong = state_after(setup, found, before, calls, method)
    if wrong:
        return Verdict("state", wrong)
    return compare(scenario, method, found, result)


@dataclass(frozen=True)
class Result:
    gradients: Vector
    losses: list[float]
    squared_norms: list[float | None]
    curvatures: list[float | None]
    penalty_norms: list[float | None]
    error: float | None
    by_exact: bool = False  # an exact method took every step of an approximate one


def checks_every_call(scenario: Scenario, method: str) -> bool:
    return method in APPROXIMATE or scenario.seed % 2 == 1


def run(setup: Setup, method: str) -> Result:
    if method == "FactoredSGD":
        return run_factored(setup)
    scenario = setup.scenario
    size = None if scenario.micro_batches == 1 else scenario.batch // scenario.micro_batches
    by_loss = "double_backward" if scenario.two_views or scenario.seed % 2 else "gram"
    with gram_for_auto() if method == "auto" else contextlib.nullcontext():
        penalty = GradientPenalty(
            setup.model,
            scenario.strength,
            method=by_loss if method == "loss" else method,
            exclude=setup.exclude,
            micro_batch_size=size,
            sampled=scenario.sampled,
            seed=scenario.seed,
            # With 0 the second call takes micro-batches in one pass without comparing it with a loop.
            check_every=int(checks_every_call(scenario, method)),
        )
    losses, errors, records = [], [], []
    for call, batch in enumerate(setup.batches):
        if scenario.two_views:
            views = {"second_view": lambda call=call: setup.closure(*setup.others[call])}
            arguments = [lambda batch=batch: setup.closure(*batch)]
        else:
            views, arguments = {}, [setup.closure, *batch]
        if method == "loss":
            loss = penalty.loss(*arguments, **views)
            (loss / scenario.calls).backward()
        else:
            loss = penalty.backward(*arguments, **views, weight=1 / scenario.calls)
        losses.append(float(loss.detach()))
        assert penalty.last is not None
        records.append(penalty.last)
        if penalty.last.error is not None:
            errors.append(penalty.last.error)
    gradients = {
        name: real(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad)
        for name, leaf in setup.trainable().items()
    }
    by_exact = all(registry.METHODS[record.method].exact for record in records)
    return Result(gradients, losses, *numbers(records), max(errors, default=None), by_exact)


def numbers(records: list[PenaltyRecord]) -> tuple[list[float | None], list[float | None], list[float | None]]:
    """Squared norms, curvatures and norms of the penalty's part, as the records have them."""
    columns = ("gradient_squared_norm", "curvature", "penalty_gradient_norm")
    found = [[getattr(record, column) for record in records] for column in columns]
    first, second, third = ([None if value is None else float(value) for value in column] for column in found)
    return first, second, third


def run_factored(setup: Setup) -> Result:
    """The gradient is read off the first update: (ω − ω′)/lr with lr = 1; Nesterov's first step is 1 + β times it.

    Leaves outside of the model are not updated.
    """
    scenario = setup.scenario
    before = {name: p.detach().clone() for name, p in setup.model.named_parameters() if p.requires_grad}
    momentum, nesterov = [(0.0, False), (0.5, False), (0.5, True)][scenario.seed % 3]
    size = None if scenario.micro_batches == 1 else scenario.batch // scenario.micro_batches
    optimizer = FactoredSGD(
        setup.model,
        lr=1.0,
        strength=scenario.strength,
        momentum=momentum,
        nesterov=nesterov,
        micro_batch_size=size,
        sampled=scenario.sampled,
        seed=scenario.seed,
    )
    loss = optimizer.step(setup.closure, *setup.batches[0])
    after = dict(setup.model.named_parameters())
    factor = 1 + momentum if nesterov else 1.0
    gradients: Vector = {name: real((before[name] - after[name].detach()) / factor) for name in before}
    assert optimizer.last is not None
    return Result(gradients, [float(loss.detach())], *numbers([optimizer.last]), None)


@contextlib.contextmanager
def gram_for_auto() -> Iterator[None]:
    """Small layers count as wide ones, so that `auto` takes the method that it takes on wide models."""
    before = registry.LARGE_WEIGHT
    registry.LARGE_WEIGHT = 1
    try:
        yield
    finally:
        registry.LARGE_WEIGHT = before


def refusal(sentence: str, found: Truth, scenario: Scenario, method: str) -> Verdict:
    """A refusal is right where no penalised parameter is reached, or torch itself has no second derivative."""
    if "depends on none" in sentence and found.reached:
        return Verdict("wrong", f"refused although a penalised parameter is reached: {sentence}")
    if found.reached and method in NEVER_REFUSE:
        with contextlib.suppress(RuntimeError):
            starts, *_ = plain_steps(set_up(scenario))
            double_backward(set_up(scenario), starts)
            return Verdict("wrong", f"refused although torch differentiates it twice: {sentence}")
    return Verdict("refused", sentence)


def same_buffer(buffer: Tensor, plain: Tensor, scenario: Scenario) -> bool:
    """Counts are equal. Running means are too, up to the order of summing where a method runs other kernels forward:
    layers of `gram`, attention under the MATH backend, a hardsigmoid written out. A batch that is counted twice moves
    them by a tenth."""
    if torch.equal(buffer, plain):
        return True
    if not buffer.is_floating_point():
        return False
    close = {"float64": 1e-10, "float32": 1e-4, "autocast": 0.02}[scenario.dtype]
    return torch.allclose(buffer, plain, rtol=close, atol=close)


def state_after(setup: Setup, found: Truth, before: Vector, calls: Counter[str], method: str) -> str:
    """What a step changed that a plain step does not; an empty string if nothing."""
    for name, buffer in setup.model.named_buffers():
        plain = found.buffers[name]
        if not same_buffer(buffer, plain, setup.scenario):
            return (
                f"buffer {name} is {buffer.flatten()[:3].tolist()}, after a plain step {plain.flatten()[:3].tolist()}"
            )
    if not torch.equal(torch.get_rng_state(), found.random_state):
        return "torch's generator is not where a plain step leaves it"
    if method != "FactoredSGD":
        for name, parameter in setup.model.named_parameters():
            if not torch.equal(parameter, before[name]):
                return f"parameter {name} was changed"
            if not parameter.requires_grad and parameter.grad is not None:
                return f"parameter {name} is frozen and has a gradient"
        if setup.scenario.micro_batches == 1:
            many = {name: count for name, count in calls.items() if count != setup.scenario.calls}
            inputs = {name for name in many if name.startswith("inputs")}  # each call has inputs of its own
            many = {name: count for name, count in many.items() if name not in inputs or count != 1}
            if many:
                return f"hooks ran {many} times in {setup.scenario.calls} calls"
    return ""


def compare(scenario: Scenario, method: str, found: Truth, result: Result) -> Verdict:
    for careful in (False, True):
        if careful:  # the oracle may have met a kink: ask it again before anyone is blamed
            found = truth(scenario, careful=True, every_call=checks_every_call(scenario, method))
            if not found.sure:
                return Verdict("undecided")
        if method in APPROXIMATE and not result.by_exact:
            error, detail = approximation_error(scenario, found, result)
            # Steps with an estimate above a tenth are taken by an exact method; an estimate may be off by a factor.
            # The floor is the rounding of a difference.
            stated = LARGEST_ERROR if result.error is None else result.error
            if error <= max(3 * stated, 1e-4 if scenario.dtype == "float64" else 0.2):
                return Verdict("approximate", f"{error:.2g} (stated {stated:.2g})")
            detail = f"error {error:.3g} of the penalty, stated {result.error}; {detail}"
        else:
            error, detail = error_of(scenario, found, result)
            if error <= 1:
                return Verdict("exact", f"{error:.2g} of the tolerance")
    return Verdict("wrong", detail)


def distance(found: Truth, result: Result) -> tuple[float, float, float, str]:
    """‖G − G*‖, the norms of the penalty's part and of the plain gradient, and all three in words."""
    chosen = list(result.gradients)
    expected: Vector = {name: found.plain[name] + found.penalty[name] for name in chosen}
    apart = difference({n: result.gradients[n] for n in chosen}, expected)
    penalty = norm_of({name: found.penalty[name] for name in chosen})
    plain = norm_of({name: found.plain[name] for name in chosen})
    worst = max(chosen, key=lambda name: float(apart[name].norm()), default="")
    detail = f"‖G − G*‖ = {norm_of(apart):.3g}, ‖penalty‖ = {penalty:.3g}, ‖plain‖ = {plain:.3g}, worst in {worst}"
    return norm_of(apart), penalty, plain, detail


def approximation_error(scenario: Scenario, found: Truth, result: Result) -> tuple[float, str]:
    """The error relative to the penalty's part, beyond what the dtype rounds."""
    apart, _, plain, detail = distance(found, result)
    _, of_plain = tolerance(scenario)
    rounded = of_plain * plain
    if scenario.dtype != "float64" and apart > rounded:  # as for exact methods, below
        rounded += 5 * rounding(scenario, found)
    return max(0.0, apart - rounded) / max(found.penalty_size, 1e-3 * plain, 1e-12), detail


def error_of(scenario: Scenario, found: Truth, result: Result) -> tuple[float, str]:
    """The error of an exact method in units of what is allowed: gradient, losses and the record's numbers."""
    of_penalty, of_plain = tolerance(scenario)
    apart, penalty, plain, detail = distance(found, result)
    # Where examples cancel, half precision rounds to more: several times what another order of rounding does.
    rounded = 0.0 if scenario.dtype == "float64" else 5 * rounding(scenario, found)
    error = apart / (of_penalty * penalty + of_plain * (plain + 1e-6) + rounded)
    for seen, true in zip(result.losses, found.losses, strict=True):
        error = max(error, abs(seen - true) / ((of_plain + 1e-9) * max(1.0, abs(true)) * 10))
    for seen_norm, true in zip(result.squared_norms, found.squared_norms, strict=True):
        if seen_norm is not None:
            near = of_penalty * max(abs(true), plain**2, 1e-9) + 2 * plain * rounded + rounded**2
            if abs(seen_norm - true) > near:
                detail = f"‖∇Ĉ‖² = {seen_norm:.8g}, true {true:.8g}; {detail}"
            error = max(error, abs(seen_norm - true) / near)
    if scenario.dtype == "float64" and not scenario.two_views:
        pairs = [
            (result.curvatures, found.curvatures, "⟨g, Hg⟩"),
            (result.penalty_norms, found.penalty_norms, "‖λ/2 Hg‖"),
        ]
        for seen, true_values, name in pairs:
            for value, true in zip(seen, true_values, strict=True):
                near = 1e-5 * (abs(true) + plain**2 + 1e-6)
                if value is None and name == "⟨g, Hg⟩" and scenario.strength:
                    return 2.0, f"{name} is None; {detail}"
                if value is not None and abs(value - true) > near:
                    detail, error = (
                        f"{name} = {value:.8g}, true {true:.8g}; {detail}",
                        max(error, abs(value - true) / near),
                    )
    return error, detail
