"""Figures 3a, 3b, 6b and 6c: batch sizes at equal ε/B and at equal λ/B."""

from __future__ import annotations

from functools import partial
from typing import Any

from tacit.report.figure import Figure, Quote
from tacit.report.figures.collapses import RATES, STRENGTHS, draw_collapse
from tacit.report.figures.fig6a_gains import APPENDIX_D
from tacit.report.rows import penalized, plain

OF_RATES: dict[str, Any] = {
    "reads": plain,
    "varying": ("learning_rate", "batch_size"),
    "draw": partial(
        draw_collapse,
        question=RATES,
        says="Test accuracy of several batch sizes at a fixed number of epochs, against ε/B and against ε.",
    ),
}
OF_STRENGTHS: dict[str, Any] = {
    "reads": penalized,
    "varying": ("strength", "batch_size"),
    "length": "updates",
    "small_rate": True,
    "draw": partial(
        draw_collapse,
        question=STRENGTHS,
        says="Test accuracy of several batch sizes at one small ε and a fixed number of updates, against λ/B and λ.",
    ),
}

FIGURES = (
    Figure(
        id="3a",
        title="Batch sizes collapse on ε/B",
        shows="batch sizes against ε/B, fixed epochs",
        claim="Different batch sizes reach the same test accuracy when ε/B is the same and B is not too large.",
        quote=Quote(
            "Different batch sizes achieve the same test accuracy if the ratio of the learning rate to the batch size "
            "(ε/B) is constant",
            "caption of figure 3a",
        ),
        **OF_RATES,
    ),
    Figure(
        id="3b",
        title="Batch sizes collapse on λ/B",
        shows="batch sizes against λ/B, fixed updates",
        claim="At a small learning rate, different batch sizes reach the same test accuracy when λ/B is the same.",
        quote=Quote(
            "The test accuracy is independent of the batch size if the ratio of the regularization coefficient to the "
            "batch size (λ/B) is constant.",
            "caption of figure 3b",
        ),
        **OF_STRENGTHS,
    ),
    Figure(
        id="6b",
        title="Batch sizes and ε/B, appendix D",
        shows="batch sizes against ε/B, appendix D",
        claim="An MLP reaches similar accuracies at different batch sizes when ε/B is the same.",
        quote=Quote(
            "We obtain similar accuracies at different batch sizes if the ratio ε/B is constant.",
            "caption of figure 6b, appendix D",
        ),
        protocol=APPENDIX_D,
        **OF_RATES,
    ),
    Figure(
        id="6c",
        title="Batch sizes and λ/B, appendix D",
        shows="batch sizes against λ/B, appendix D",
        claim="An MLP reaches similar accuracies at different batch sizes when λ/B is the same (smaller batches "
        "slightly higher ones).",
        quote=Quote(
            "We obtain similar accuracies at different batch sizes if the ratio (λ/B) is constant.",
            "caption of figure 6c, appendix D",
        ),
        protocol=APPENDIX_D,
        **OF_STRENGTHS,
    ),
)
