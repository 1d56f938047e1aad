"""Which flow stays close to gradient descent, and for how long, when the learning rate is not small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from tacit._util.arguments import finite_number, whole_number
from tacit._util.errors import InputError
from tacit.problem import Problem
from tacit.theory.corrections import gd_second_correction
from tacit.theory.flows import flow, gradient_flow_field
from tacit.theory.iterates import gradient_descent
from tacit.theory.landscape import Field, Landscape, view
from tacit.theory.modified_losses import modified_loss_gd
from tacit.theory.principal_flow import principal_field

RTOL, ATOL = 1e-6, 1e-9  # far below the distances that are compared
LARGEST = 400  # parameters for which the unstable directions are found from a dense Hessian


@dataclass(frozen=True)
class FlowComparison:
    """Distances of flows from the iterates of gradient descent, at the even steps, in the stable directions.

    Stable directions are the eigendirections of ∇∇C at the iterate with |εh| < 2: along the others gradient descent
    diverges and no flow describes it. `sharpness` is ε times the largest curvature at the same steps. A flow that could
    not be integrated has the distance NaN from there on.
    """

    learning_rate: float
    steps: tuple[int, ...]
    sharpness: tuple[float, ...]
    distances: dict[str, tuple[float, ...]]

    def ratio(self, flow_name: str, *, to: str = "principal flow, third derivatives") -> float:
        """How many times farther than `to` this flow is from gradient descent at the last step."""
        return self.distances[flow_name][-1] / self.distances[to][-1]

    def __str__(self) -> str:
        last = self.steps[-1]
        lines = [f"after {last} steps at ε = {self.learning_rate:.4g}, εh from {self.sharpness[0]:.2f} to "
                 f"{self.sharpness[-1]:.2f}: distance from gradient descent"]  # fmt: skip
        return "\n".join([*lines, *[f"  {name:<35} {far[-1]:.2e}" for name, far in self.distances.items()]])


def compare_flows(
    problem: Problem | Landscape,
    *,
    learning_rate: float,
    steps: int = 50,
    start: Tensor | None = None,
    flows: tuple[str, ...] | None = None,
) -> FlowComparison:
    """Gradient descent beside gradient flow, C̃_GD, C̃_GD with f₂, and the principal flow without and with T.

    >>> from tacit.theory import problems
    >>> seen = compare_flows(problems.quadratic(), learning_rate=1.0, steps=4, flows=("C̃_GD", "principal flow"))
    >>> seen.ratio("C̃_GD", to="principal flow") > 1000                    # a quadratic: the principal flow is exact
    True
    """
    scape, w = view(problem, start)
    rate = finite_number("learning_rate", learning_rate, positive=True)
    whole_number("steps", steps, at_least=2)
    if steps % 2:
        raise InputError(f"steps={steps}; expected an even number: beyond εh = 1 a flow meets every second iterate.")
    if scape.size > LARGEST:
        raise InputError(f"{scape.size} parameters; expected at most {LARGEST}: every iterate needs its spectrum.")
    known = _fields(scape, rate)
    wanted = tuple(known) if flows is None else flows
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise InputError(f"flow {unknown[0]!r} is unknown; expected some of {', '.join(known)}.")
    iterates = gradient_descent(scape, learning_rate=rate, steps=steps, start=w)[::2]
    spectra = [torch.linalg.eigh(torch.func.hessian(scape.loss)(point)) for point in iterates]
    distances = {}
    for name in wanted:
        path = _path(known[name](), w, rate, len(iterates))
        away = [_stable_part(spectrum, rate, point - met)
                for spectrum, point, met in zip(spectra, iterates, path, strict=True)]  # fmt: skip
        distances[name] = tuple(part.norm().item() for part in away)
    sharpness = tuple(rate * values[-1].item() for values, _ in spectra)
    return FlowComparison(rate, tuple(range(0, steps + 1, 2)), sharpness, distances)


def _fields(scape: Landscape, rate: float) -> dict[str, Callable[[], Field]]:
    modified = gradient_flow_field(lambda w: modified_loss_gd(scape, w, learning_rate=rate))
    principal = partial(principal_field, scape, learning_rate=rate)
    return {
        "gradient flow": lambda: gradient_flow_field(scape.loss),
        "C̃_GD": lambda: modified,
        "C̃_GD with f₂": lambda: lambda w: modified(w) + rate**2 * gd_second_correction(scape, w),
        "principal flow": principal,
        "principal flow, third derivatives": lambda: principal(third_derivatives=True),
    }


def _path(field: Field, start: Tensor, rate: float, points: int) -> Tensor:
    """The flow at times 0, 2ε, 4ε, …; NaN from the time at which it cannot be integrated.

    From point to point: the interpolation of one long integration is rougher than its steps once a sharp direction has
    decayed and the steps grow to the edge of stability.
    """
    path = [start]
    for _ in range(points - 1):
        try:
            path.append(flow(field, path[-1], time=2 * rate, rtol=RTOL, atol=ATOL))
        except InputError:
            break
    return torch.stack([*path, *[torch.full_like(start, torch.nan)] * (points - len(path))])


def _stable_part(spectrum: tuple[Tensor, Tensor], rate: float, away: Tensor) -> Tensor:
    values, vectors = spectrum
    stable = (rate * values).abs() < 2
    return vectors[:, stable].T @ away
