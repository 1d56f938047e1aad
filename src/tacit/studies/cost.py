"""What runs cost by counting, in updates and floating-point operations, and how long a device needs for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tacit.studies.describe.spec import RunSpec
from tacit.studies.train.operations import count, expected_test_size, step_factor

PLAIN = 3  # forward passes' worth of products in a gradient: outputs, gradients of inputs, gradients of weights
# Products in an exact penalised step over those in a plain one. A convolution: nine for three. A linear layer in the
# Gram form never forms ∇Ĉ: six for three, and products of B x B that are small beside a wide layer.
PENALIZED = {"mlp": 2, "wide_resnet": 3}

DEVICE_TFLOPS = 19.5  # one A100 in float32 without TF32
UTILISATION = 0.1  # a guess: minibatches of 16 or 32 examples leave such a device waiting for its next kernel


@dataclass(frozen=True)
class Cost:
    """Work that does not depend on a machine."""

    runs: int
    updates: int
    operations: float

    def device_seconds(self, *, tflops: float = DEVICE_TFLOPS, utilisation: float = UTILISATION) -> float:
        """operations / (peak · share of the peak that is reached)."""
        return self.operations / (tflops * 1e12 * utilisation)


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


def in_digits(number: float) -> str:
    """
    >>> in_digits(5.23e18), in_digits(8_000_000), in_digits(0)
    ('5.2e18', '8.0e6', '0')
    """
    return f"{number:.1e}".replace("e+0", "e").replace("e+", "e") if number else "0"
