"""`regime`: whether a learning rate is inside the range in which the modified loss can be believed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from tacit._util.errors import InputError
from tacit._util.lanczos import extreme_eigenpairs
from tacit._util.random_generators import generator
from tacit.problem import Problem
from tacit.theory.corrections import sgd_first_correction, sgd_second_correction, sgd_second_correction_estimate
from tacit.theory.guards import require_third_derivatives, warn_if_not_smooth
from tacit.theory.landscape import Landscape, Parameters, view

Verdict = Literal["inside", "at the edge", "outside"]
# The next correction beside the first: below a quarter the modified loss is right to leading digit, above one it is not
# the dominant effect. The reach m·ε·‖H‖ is the parameter of the whole series, which no small first terms can excuse:
# at ε‖H‖ = 1 the series of gradient descent on a quadratic, log(1 − ελ)/ε, stops converging.
INSIDE_RATIO, EDGE_RATIO = 0.25, 1.0
INSIDE_REACH, EDGE_REACH = 1.0, 4.0
EXACT_BATCHES = 16  # beyond, φ₂ by random signs: the exact one costs m² products


@dataclass(frozen=True)
class Regime:
    """How far the theory reaches at one learning rate. `next_to_first` is ‖ε²φ₂‖/‖εφ₁‖, None when not computable."""

    learning_rate: float
    batches_per_epoch: int
    curvature: float
    reach: float
    next_to_first: float | None
    verdict: Verdict
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        ratio = "not computed" if self.next_to_first is None else f"{self.next_to_first:.2g}"
        lines = [
            f"{self.verdict} the range in which the modified loss can be believed",
            f"  m·ε·‖H‖ = {self.batches_per_epoch} × {self.learning_rate:g} × {self.curvature:.3g} = {self.reach:.2g}"
            f" (inside up to {INSIDE_REACH:g}, outside from {EDGE_REACH:g}; ε‖H‖ must stay below 1)",
            f"  next correction beside the first: {ratio} (inside up to {INSIDE_RATIO:g}, outside from {EDGE_RATIO:g})",
            *[f"  {note}" for note in self.notes],
        ]
        return "\n".join(lines)


def regime(
    problem: Problem | Landscape,
    parameters: Parameters = None,
    *,
    learning_rate: float,
    inner_steps: int = 1,
    probes: int = 8,
    seed: int = 0,
) -> Regime:
    """Is ε small enough? The two numbers on which it depends, and a verdict.

    - reach = m·ε·‖H‖, with ‖H‖ the largest curvature (in size) of C;
    - next_to_first = ‖ε² φ₂‖ / ‖ε φ₁‖, what the modified loss leaves out beside what it adds.

    A statement about one point; the answer can change along training. For n-step SGD ε is the effective rate.

    >>> from tacit.theory import problems
    >>> regime(problems.quadratic(), learning_rate=0.01).verdict
    'inside'
    """
    if not (math.isfinite(learning_rate) and learning_rate > 0):
        raise InputError(f"learning_rate={learning_rate}; expected a finite positive number.")
    if inner_steps < 1 or probes < 1:
        raise InputError(f"inner_steps={inner_steps}, probes={probes}; expected at least one of each.")
    scape, w = view(problem, parameters)
    notes = []
    kinks = warn_if_not_smooth(scape)
    if kinks:
        notes.append(
            f"the loss has kinks ({', '.join(kinks)}): the next correction is that of the smooth piece around this "
            "point, without what units add that switch during a step."
        )
    sharpness = curvature(scape, w, seed=seed)
    batches = scape.batches_per_epoch
    reach = batches * learning_rate * sharpness
    try:
        require_third_derivatives(scape)
    except InputError as error:
        ratio = None
        notes.append(str(error))
    else:
        if batches <= EXACT_BATCHES:
            second = sgd_second_correction(scape, w, inner_steps=inner_steps)
        else:
            draws = torch.randint(0, 2, (probes, batches), generator=generator(seed, "probe")) * 2 - 1
            second = sgd_second_correction_estimate(scape, w, signs=draws, inner_steps=inner_steps)
            notes.append(f"the second correction is a mean of {probes} random-sign estimates, a little too large.")
        first = sgd_first_correction(scape, w) / inner_steps
        ratio = learning_rate * second.norm().item() / max(first.norm().item(), 1e-300)
    verdict = _verdict(reach, learning_rate * sharpness, ratio)
    return Regime(learning_rate, batches, sharpness, reach, ratio, verdict, tuple(notes))


def curvature(problem: Problem | Landscape, parameters: Parameters = None, *, seed: int = 0) -> float:
    """‖H‖, the largest eigenvalue in size of the Hessian of C, by Lanczos iterations on Hessian products."""
    scape, w = view(problem, parameters)

    def product(v: np.ndarray) -> np.ndarray:
        return scape.hessian_product(w, torch.from_numpy(np.ascontiguousarray(v.reshape(-1)))).detach().numpy()

    start = torch.randn(scape.size, generator=generator(seed, "probe"), dtype=torch.float64).numpy()
    values, _ = extreme_eigenpairs(product, start, which="LM", tolerance=1e-4)
    return float(abs(values[-1]))


def _verdict(reach: float, step: float, ratio: float | None) -> Verdict:
    if reach >= EDGE_REACH or step >= 1 or (ratio is not None and ratio >= EDGE_RATIO):
        return "outside"
    if reach > INSIDE_REACH or (ratio is not None and ratio > INSIDE_RATIO):
        return "at the edge"
    return "inside"
