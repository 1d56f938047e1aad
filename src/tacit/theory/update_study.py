"""`verify_update`: the observed orders of any update against its own modified flow, and the loss that it follows."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.func import jvp, vmap

from tacit._util.arguments import whole_number
from tacit.problem import Problem
from tacit.theory.comparisons import learning_rates_below
from tacit.theory.flows import flow_at_rates
from tacit.theory.landscape import Landscape, view
from tacit.theory.logarithm import Iterates, ModifiedFlow, Update, interpolated_corrections, modified_flow
from tacit.theory.memory import MemoryMethod, Readout, WithMemory, slow_state
from tacit.theory.potentials import ModifiedLoss, modified_loss_of
from tacit.theory.preconditioned import PreconditionedLoss, preconditioned_loss
from tacit.theory.study import ConvergenceStudy, Finding, finding_of

REACH = 0.1  # the number of steps times ε times the stiffness, at the largest learning rate
STEPS = 4
FINER = 3  # of the rates at the second try
TERMS = ("f₀", "f₀ + εf₁", "f₀ + εf₁ + ε²f₂", "f₀ + … + ε³f₃", "f₀ + … + ε⁴f₄")


@dataclass(frozen=True)
class UpdateStudy:
    """Orders of an update against its own flow, and the modified loss it follows, on one or several problems."""

    orders: ConvergenceStudy
    losses: tuple[ModifiedLoss, ...]
    preconditioned: tuple[PreconditionedLoss, ...] = ()

    @property
    def passed(self) -> bool:
        """True when every measured order is the predicted one: the series is that of this update."""
        return self.orders.passed

    def __add__(self, other: UpdateStudy) -> UpdateStudy:
        return UpdateStudy(
            self.orders + other.orders, self.losses + other.losses, self.preconditioned + other.preconditioned
        )

    def __str__(self) -> str:
        return "\n".join([str(self.orders), *self.followed()])

    def followed(self) -> list[str]:
        """One sentence for each problem: the loss that the update follows; and the one behind its preconditioner."""
        return [
            *[f"{loss.problem}: follows {loss}" for loss in self.losses],
            *[f"{loss.problem}: {loss}" for loss in self.preconditioned],
        ]

    def to_json(self) -> str:
        """Every finding with its errors, and every loss, as JSON text."""
        losses = [{**asdict(loss), "exists": loss.exists, "text": str(loss)} for loss in self.losses]
        behind = [{**asdict(loss), "order": loss.order, "text": str(loss)} for loss in self.preconditioned]
        read = {**json.loads(self.orders.to_json()), "losses": losses, "preconditioned": behind}
        return json.dumps(read, indent=1)


def verify_update(
    update: Update | WithMemory,
    problem: Problem | Landscape,
    *,
    name: str = "update",
    problem_name: str = "problem",
    order: int = 2,
    learning_rates: Sequence[float] | None = None,
    readout: Readout | None = None,
) -> UpdateStudy:
    """Does this update follow its own modified flow, at the order predicted, and is there a loss that it descends?

    Four real updates from the problem's parameters are compared with the flows of f₀, f₀ + εf₁, …, up to `order`; their
    distances must vanish as ε², ε³, …, or faster where the next correction is zero (Runge-Kutta). A method with memory
    starts with the memory that belongs to a long run. With a `readout` (see `modified_flow`) the points that are read
    are compared. The loss is a `ModifiedLoss`: C + c ε‖∇C‖² with its coefficient, another one, or none; for a method
    that names its preconditioner the `PreconditionedLoss` behind it is measured as well.

    >>> from tacit.theory import Landscape, problems
    >>> scape = Landscape(problems.logistic())
    >>> def extragradient(w, rate):
    ...     return w - rate * scape.gradient(w - rate * scape.gradient(w))
    >>> study = verify_update(extragradient, scape, order=1)
    >>> study.passed, str(study.losses[0])
    (True, 'C − 0.25 ε‖∇C‖²')
    """
    whole_number("order", order, at_least=0)
    scape, start = view(problem)
    flow = modified_flow(update, order=max(order, 1), method="nodes", readout=readout)
    terms = [term.detach() for term in flow.corrections(start)]
    predicted = _predicted_orders(update, readout, order, start, terms)
    # A method whose first corrections vanish leaves errors of ε⁵: at the usual rates they would be rounding.
    reach = REACH if min(predicted) < 5 else 2 * REACH
    largest = reach / (STEPS * stiffness(flow, start, terms))
    fields = [modified_flow(update, order=k, method="nodes", readout=readout) for k in range(order + 1)]
    findings: list[Finding] = []
    for refined in (1, FINER):
        rates = learning_rates_below(largest / refined, learning_rates)
        ends, tried = _ends(update, readout, start, rates, order=order, vectorize=scape.vectorizes), []
        for k, field in enumerate(fields):
            reached = flow_at_rates(field, start, rates, updates=STEPS, vectorize=scape.vectorizes)
            errors = tuple((ends - reached).norm(dim=1).tolist())
            statement = f"{name} against {TERMS[k] if k < len(TERMS) else f'f₀ + … up to order {k}'}"
            made = Finding(statement, "own flow", predicted[k], problem_name, tuple(rates.tolist()), errors)
            tried.append(finding_of(made))
        # At the smaller rates errors may be rounding: then the first try stands.
        findings = [
            new if new.errors and not new.not_measured else old
            for old, new in zip(findings or tried, tried, strict=True)
        ]
        # An order is one as ε → 0: where it is missed, smaller rates tell a wrong series from rates that are too large.
        if learning_rates is not None or all(finding.status != "fail" for finding in findings):
            break
    behind: tuple[PreconditionedLoss, ...] = ()
    if isinstance(update, MemoryMethod) and update.preconditioner is not None:
        behind = (preconditioned_loss(update, scape, problem=problem_name),)
    first = modified_flow(update, order=1, method="nodes", readout=readout)  # its Jacobian is wanted: no more than f₁
    loss = modified_loss_of(first, scape, problem=problem_name)
    return UpdateStudy(ConvergenceStudy(tuple(findings)), (loss,), behind)


def stiffness(flow: ModifiedFlow, w: Tensor, terms: Sequence[Tensor]) -> float:
    """How fast the series of an update grows, 1/time: the largest of ‖f₀'‖ and the ratios of successive terms.

    For gradient descent ‖f₀'‖ is the largest curvature, and εf₁ beside f₀ is at most ε‖H‖/2.
    """
    size = max(terms[0].norm().item(), 1e-300)
    ratios = [((k + 1) * term.norm().item() / size) ** (1 / k) for k, term in enumerate(terms) if k > 0]
    v, growth = torch.cos(torch.arange(w.numel(), dtype=torch.float64)), 0.0
    for _ in range(8):  # power iterations: a factor of two either way does no harm
        v = jvp(flow.correction(0), (w,), (v / v.norm(),))[1].detach()
        growth = max(growth, v.norm().item())
        if not growth > 0 or not math.isfinite(growth):
            break
    return max(*ratios, growth, 1e-300)


def _predicted_orders(
    update: Update | WithMemory, readout: Readout | None, order: int, w: Tensor, terms: Sequence[Tensor]
) -> list[int]:
    """For k = 0, …, order: one more than the index of the first correction after f_k that does not vanish.

    Of a map two further corrections are computed, so that a method of order four is recognized; a correction vanishes
    when it is not larger than what rounding makes of it, seen by computing it twice.
    """
    if isinstance(update, WithMemory):
        vanishing = {k for k, term in enumerate(terms) if term.norm() <= 1e-10 * terms[0].norm()}
        last = len(terms)
    else:
        one, other = interpolated_corrections(Iterates(update, readout), order + 2, w)
        vanishing = {k for k, pair in enumerate(zip(one, other, strict=True)) if _is_rounding(*pair)}
        last = order + 3
    return [next(j for j in range(k + 1, last + 1) if j not in vanishing) + 1 for k in range(order + 1)]


def _is_rounding(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).norm() >= 0.1 * one.norm())


def _ends(
    update: Update | WithMemory, readout: Readout | None, start: Tensor, rates: Tensor, *, order: int, vectorize: bool
) -> Tensor:
    """Where real updates lead, one row per rate."""

    def walk(rate: Tensor) -> Tensor:
        if not isinstance(update, WithMemory):
            return Iterates(update, readout)(start, rate, max(STEPS, order + 2))[STEPS]
        read = update.readout if readout is None else readout
        w, memory = slow_state(update, start, rate, order=order + 1, readout=read)
        for _ in range(STEPS):
            w, memory = update.step(w, memory, rate)
        return w if read is None else read(w, memory)

    return vmap(walk)(rates) if vectorize else torch.stack([walk(rate) for rate in rates])
