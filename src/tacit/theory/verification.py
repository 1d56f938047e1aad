"""`verify`: measure every statement of the theory on a problem, and say which orders are seen."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from tacit._util.errors import InputError
from tacit.problem import Problem
from tacit.theory import problems
from tacit.theory.comparisons import Experiment, Rival, learning_rates_below
from tacit.theory.fixed_time import LARGEST
from tacit.theory.flows import flow_at_rates
from tacit.theory.guards import require_third_derivatives, warn_if_not_smooth
from tacit.theory.landscape import Landscape
from tacit.theory.orders import orders_of
from tacit.theory.statements import ScalarStatement, all_experiments, fixed_time_measurements
from tacit.theory.study import ConvergenceStudy, Finding, finding_of
from tacit.theory.validity import curvature

REACH = 0.1  # m·ε·‖H‖ at the largest learning rate: small enough for the leading power to dominate
WEIGHT_DECAY = 0.3


def verify(
    problem: Problem | Landscape,
    *,
    name: str = "problem",
    learning_rates: Sequence[float] | None = None,
    only: str | None = None,
    samples: int = 400,
) -> ConvergenceStudy:
    """Predicted and observed orders of every statement on one problem.

    Learning rates are powers of two below 0.1/(m‖H‖), unless given. `only` keeps the statements whose text contains
    it. Kinks (ReLU) give a warning, because orders assume a smooth loss; more than 6 minibatches make the mean a
    sampled one, with a warning, and leave out what sampling noise would hide.

    >>> from tacit.theory import problems
    >>> study = verify(problems.quadratic(batches=3), only="GD against")
    >>> [finding.status for finding in study.findings][:3]
    ['pass', 'pass', 'pass']
    """
    scape = problem if isinstance(problem, Landscape) else Landscape(problem)
    warn_if_not_smooth(scape)
    third = _third_derivatives_problem(scape)
    orders = orders_of(scape.batches_per_epoch, samples=samples)
    largest_curvature = curvature(scape)
    largest = REACH / (scape.batches_per_epoch * largest_curvature)
    findings: list[Finding] = []
    for experiment in all_experiments(scape, _with_weight_decay(scape), orders, largest_curvature):
        rivals = [rival for rival in experiment.rivals if only is None or only in rival.statement]
        if not rivals:
            continue
        reachable = largest * scape.batches_per_epoch / experiment.updates / experiment.stiffness
        rates = learning_rates_below(reachable, learning_rates)
        ends = None if experiment.not_measured else experiment.ends(rates)
        for rival in rivals:
            reason = experiment.not_measured
            if rival.needs_third_derivatives and third:
                reason = third
            if rival.needs_exact_mean and not orders.exact:
                reason = f"the mean is over {orders}, whose noise hides this order"
            if rival.needs_several_batches and scape.batches_per_epoch == 1:
                reason = "with one minibatch C̃_SGD is C̃_GD and there is one order: nothing to tell apart"
            errors = () if reason or ends is None else _errors(scape, experiment, rival, rates, ends)
            findings.append(_finding(rival, name, rates, errors, reason))
    for measurement in fixed_time_measurements(scape, largest_curvature):
        if only is None or only in measurement.statement:
            findings.append(_measured(scape, measurement, name, third))
    if not findings:
        raise InputError(f"only={only!r} matches no statement; see `tacit verify` for all of them.")
    return ConvergenceStudy(tuple(findings))


def verify_all(names: Sequence[str] = tuple(problems.PROBLEMS)) -> ConvergenceStudy:
    """`verify` on the closed-form problems of `theory.problems`."""
    study = ConvergenceStudy(())
    for name in names:
        study = study + verify(problems.PROBLEMS[name](), name=name)
    return study


def _errors(scape: Landscape, experiment: Experiment, rival: Rival, rates: Tensor, ends: Tensor) -> tuple[float, ...]:
    reached = flow_at_rates(rival.field, scape.start, rates, updates=experiment.updates, vectorize=scape.vectorizes)
    return tuple((ends - reached).norm(dim=1).tolist())


def _measured(scape: Landscape, measurement: ScalarStatement, name: str, third: str) -> Finding:
    reason = third if measurement.needs_third_derivatives else ""
    if scape.batches_per_epoch < 2:
        reason = "with one minibatch there is one order and one draw"
    elif not scape.separable or scape.train_size % 2:
        reason = "the examples cannot be dealt into two minibatches of one size"
    elif scape.size > LARGEST:
        reason = f"{scape.size} parameters are more than the {LARGEST} for which a covariance is integrated"
    errors = () if reason else tuple(measurement.error(rate) for rate in measurement.rates)
    rates = measurement.rates if errors else ()
    return finding_of(Finding(measurement.statement, measurement.where, measurement.order, name, rates, errors, reason))


def _finding(rival: Rival, name: str, rates: Tensor, errors: tuple[float, ...], reason: str) -> Finding:
    seen = tuple(rates.tolist()) if errors else ()
    return finding_of(Finding(rival.statement, rival.where, rival.order, name, seen, errors, reason))


def _third_derivatives_problem(scape: Landscape) -> str:
    try:
        require_third_derivatives(scape)
    except InputError as error:
        return str(error)
    return ""


def _with_weight_decay(scape: Landscape) -> Landscape:
    own = scape.problem
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        twin = Problem(
            own.model,
            own.loss_fn,
            (own.inputs, own.targets),
            batches=own.batches,
            weight_decay=own.weight_decay + WEIGHT_DECAY,
            dtype=torch.float64,
        )
    twin.parameters = own.parameters
    return Landscape(twin)
