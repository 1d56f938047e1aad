"""Figures 7a and 7b: with n updates per minibatch, does test accuracy follow the bare rate α, or nα?"""

from __future__ import annotations

from typing import Any

from tacit.report.figure import Drawing, Figure, Quote, Source
from tacit.report.figures.collapses import BARE, draw_collapse
from tacit.report.rows import epochs_of, plain, planned_updates

N_STEP = ("learning_rate", "inner_steps")
CONSTANT: dict[str, Any] = {"order": "shuffled", "schedule": "constant", "model": "mlp", "weight_decay": 0.0}


def draw_7a(source: Source) -> Drawing:
    length = f"{epochs_of(source.rows[0]):g} epochs"
    return draw_collapse(source, BARE, says=f"n-step SGD at a constant rate for {length}, against α and against nα.")


def draw_7b(source: Source) -> Drawing:
    length = f"{planned_updates(source.rows[0])} parameter updates"
    return draw_collapse(source, BARE, says=f"n-step SGD at a constant rate for {length}, against α and against nα.")


FIGURES = (
    Figure(
        id="7a",
        title="n-step SGD collapses on α, fixed epochs",
        shows="n-step SGD against α and nα, fixed epochs, constant rate",
        claim="With n updates per minibatch and fixed epochs, test accuracy depends on the bare rate α, not on nα.",
        quote=Quote(
            "achieve similar test accuracies for different values of n, so long as the bare learning rate α is the "
            "same",
            "caption of figure 7a, appendix D",
        ),
        reads=plain,
        varying=N_STEP,
        protocol=CONSTANT,
        options=("epochs",),
        draw=draw_7a,
    ),
    Figure(
        id="7b",
        title="n-step SGD collapses on α, fixed updates",
        shows="n-step SGD against α and nα, fixed updates, constant rate",
        claim="With n updates per minibatch and a fixed number of them in all, test accuracy depends on α, not on nα.",
        quote=Quote(
            "We observe a similar phenomenon when training for a fixed number of parameter updates.",
            "caption of figure 7b, appendix D",
        ),
        reads=plain,
        varying=N_STEP,
        protocol=CONSTANT,
        length="updates",
        options=("updates",),
        draw=draw_7b,
    ),
)
