"""What runs cost by counting, in updates, floating-point operations and memory; how such numbers are written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tacit._util.errors import InputError
from tacit.studies.describe.spec import RunSpec
from tacit.studies.execute import machine
from tacit.studies.train.operations import count, expected_test_size, step_factor
from tacit.studies.train.packing import Fleet

PLAIN = 3  # forward passes' worth of products in a gradient: outputs, gradients of inputs, gradients of weights
# Products in an exact penalised step over those in a plain one. A convolution: nine for three. A linear layer in the
# Gram form never forms ∇Ĉ: six for three, and products of B x B that are small beside a wide layer.
PENALIZED = {"mlp": 2, "wide_resnet": 3}
YEAR = 365.25 * 24 * 3600.0


@dataclass(frozen=True)
class Cost:
    """Work that does not depend on a machine."""

    runs: int
    updates: int
    operations: float

    def __str__(self) -> str:
        return f"{self.updates:,} updates, {in_digits(self.operations)} floating-point operations"


def cost(runs: Iterable[RunSpec]) -> Cost:
    """The sum over distinct runs."""
    distinct = {run.hash: run for run in runs}.values()
    return Cost(len(distinct), sum(run.total_updates for run in distinct), sum(map(operations, distinct)))


def operations(run: RunSpec) -> float:
    """Floating-point operations of a whole run, two per multiply-add.

    2 · multiply-adds · (3 · factor · B · updates + evaluations · (N + test examples) + 3 · N)

    `factor` is 1, or that of the exact penalty; the last term is C_reg at the end. Augmentation, activations and the
    update itself are not counted: they are below a hundredth of this for the models here.
    """
    trained = run.total_updates * run.batch_size * step_factor(run, PENALIZED.get(run.model, 3))
    seen = run.evaluations * (run.train_size + (run.test_size or expected_test_size(run)))
    return 2.0 * count(run).multiply_adds * (PLAIN * trained + seen + PLAIN * run.train_size)


def memory(fleet: Fleet) -> float:
    """Bytes that training a fleet needs at the very least: parameters and gradients, activations of a minibatch."""
    counted, rows = count(fleet.runs[0]), fleet.runs[0].batch_size
    return 4.0 * len(fleet.runs) * (2 * counted.parameters + rows * counted.activations)


def refuse_too_big(fleets: Sequence[Fleet], *, name: str) -> None:
    """InputError for a study that cannot fit into the memory of this machine."""
    most = max(map(memory, fleets), default=0.0)
    if most > machine.machine_memory():
        raise InputError(
            f"a fleet of the study {name} needs at least {most / 1e9:,.0f} GB and this machine has "
            f"{machine.machine_memory() / 1e9:,.0f} GB; use a smaller width, depth or batch_size."
        )


def in_digits(number: float) -> str:
    """
    >>> in_digits(5.23e18), in_digits(8_000_000), in_digits(0)
    ('5.2e18', '8.0e6', '0')
    """
    return f"{number:.1e}".replace("e+0", "e").replace("e+", "e") if number else "0"


def in_words(seconds: float) -> str:
    """
    >>> [in_words(s) for s in (0.2, 59.6, 90, 4000, 1e6, 1e11)]
    ['a second', '1 min', '1 min 30 s', '1 h 6 min', '12 days', '3,169 years']
    """
    whole = round(seconds)
    if whole < 2:
        return "a second"
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        minutes, rest = divmod(whole, 60)
        return f"{minutes} min {rest} s" if rest and minutes < 10 else f"{minutes} min"
    if whole < 100 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{seconds / 86400:.0f} days" if seconds < 2 * YEAR else f"{seconds / YEAR:,.0f} years"
