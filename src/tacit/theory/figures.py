"""Figures of the theory: errors against the learning rate, and a picture for the eye."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tacit._util.errors import InputError
from tacit._util.files import write_atomically
from tacit.theory import problems
from tacit.theory.flows import flow, gradient_flow_field
from tacit.theory.iterates import sgd_rule, walk
from tacit.theory.landscape import Landscape
from tacit.theory.modified_losses import modified_loss_sgd
from tacit.theory.orders import orders_of, steps_of
from tacit.theory.study import ConvergenceStudy

# One colour, one meaning: the flow of C, the flow of C̃_SGD, what SGD does.
GRADIENT_FLOW, MODIFIED_FLOW, SGD = "#7a7a7a", "#0b6e99", "#c4471c"
PICTURE_MARKS = 15
FORMATS = (".png", ".svg", ".pdf")


def pyplot() -> Any:
    """matplotlib's, without a window; refused where it is not installed."""
    try:
        import matplotlib
    except ImportError as error:
        raise InputError(
            "a figure needs matplotlib, which is not installed. In a clone of tacit run: pip install '.[figures]'"
        ) from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def draw_study(study: ConvergenceStudy, path: str | Path) -> Path:
    """Log-log errors of every statement against ε, one panel per experiment, one colour per predicted order."""
    plt = pyplot()
    target = _checked(path)
    rows = study.rows()
    columns = min(4, max(1, len(rows)))
    height = -(-len(rows) // columns)
    figure, axes = plt.subplots(height, columns, figsize=(4.2 * columns, 3.0 * height), squeeze=False)
    marks = dict(zip(study.problems, "os^Dv*", strict=False))
    for axis, (statement, where, predicted, by_problem) in zip(axes.flat, rows, strict=False):
        for name, finding in by_problem.items():
            if not finding.errors:
                continue
            largest, rates = finding.learning_rates[0], finding.learning_rates
            scaled = [error / finding.errors[0] for error in finding.errors]
            label = f"{name}: {finding.observed:.2f}" if finding.observed is not None else name
            axis.loglog([r / largest for r in rates], scaled, marks.get(name, "o"), ms=5, label=label, base=2)
        axis.loglog([1, 1 / 8], [1, 8.0**-predicted], "-", color="#999999", lw=1, label=f"order {predicted:g}", base=2)
        axis.set_title(f"{statement}\n({where})", fontsize=8)
        axis.legend(fontsize=6, frameon=False)
        axis.tick_params(labelsize=6)
    for axis in axes.flat[len(rows) :]:
        axis.axis("off")
    figure.supxlabel("learning rate ε, relative to the largest", fontsize=10)
    figure.supylabel("distance from the flow,\nrelative to the largest", fontsize=10)
    figure.tight_layout()
    return _saved(figure, target)


def draw_picture(path: str | Path, *, learning_rate: float = 0.03, epochs: int = 450) -> Path:
    """Where the eye sees the difference: two parameters, gradient flow, modified flow, and SGD.

    The loss ½(ab − y)² with noisy labels has a valley of minima ab = 1. Gradient flow stops in it; the flow of C̃_SGD
    goes on along it to the flat, balanced minimum, and so does SGD.
    """
    plt = pyplot()
    target = _checked(path)
    paths = picture_paths(learning_rate=learning_rate, epochs=epochs)
    figure, axis = plt.subplots(figsize=(6.4, 5.2))
    _draw_contours(axis)
    axis.plot(*paths["gradient flow"].T, color=GRADIENT_FLOW, lw=2.5, label="gradient flow of C")
    axis.plot(*paths["gradient flow"][-1], "s", color=GRADIENT_FLOW, ms=8)
    axis.plot(*paths["modified flow"].T, color=MODIFIED_FLOW, lw=2.5, label="gradient flow of C̃_SGD (Eq. 1)")
    shown = slice(None, None, epochs // PICTURE_MARKS)
    same_times = paths["modified flow"][:: (len(paths["modified flow"]) - 1) // PICTURE_MARKS]
    axis.plot(
        *same_times.T, "|", color=MODIFIED_FLOW, ms=14, mew=2, label=f"the same, every {epochs // PICTURE_MARKS} epochs"
    )
    axis.plot(
        *paths["SGD"][shown].T,
        ".",
        color=SGD,
        ms=9,
        label=f"SGD, mean over orders, every {epochs // PICTURE_MARKS} epochs",
    )
    axis.plot(*paths["SGD"][0], "o", color="black", ms=6)
    axis.annotate(
        "start", (float(paths["SGD"][0][0]), float(paths["SGD"][0][1])), textcoords="offset points", xytext=(6, 6)
    )
    axis.set_xlabel("first parameter a")
    axis.set_ylabel("second parameter b")
    axis.set_title(
        f"½(ab − y)², y = 0 or 2: learning rate ε = {learning_rate:g}, {epochs} epochs of 2 minibatches", fontsize=10
    )
    axis.legend(loc="upper right", frameon=True)
    figure.tight_layout()
    return _saved(figure, target)


def picture_paths(*, learning_rate: float, epochs: int, points: int = 16 * PICTURE_MARKS) -> dict[str, Tensor]:
    """The three paths of the picture at evenly spaced times; SGD is averaged over orders once per epoch."""
    scape = Landscape(problems.valley())
    steps = steps_of(scape, orders_of(scape.batches_per_epoch).rows)
    rates = torch.tensor([learning_rate], dtype=torch.float64)
    where, walked = scape.start, [scape.start]
    for _ in range(epochs):
        where = walk(scape, sgd_rule(scape), where.unsqueeze(0), rates, steps)[0].mean(0)
        walked.append(where)
    time = epochs * scape.batches_per_epoch * learning_rate
    times = torch.linspace(0.0, time, points + 1, dtype=torch.float64).tolist()
    plain = gradient_flow_field(scape.loss)
    modified = gradient_flow_field(lambda w: modified_loss_sgd(scape, w, learning_rate=learning_rate))
    return {
        "gradient flow": flow(plain, scape.start, time=time, times=times, rtol=1e-9),
        "modified flow": flow(modified, scape.start, time=time, times=times, rtol=1e-9),
        "SGD": torch.stack(walked),
    }


def _draw_contours(axis: Any) -> None:
    import numpy as np

    a, b = np.meshgrid(np.linspace(0.6, 2.4, 200), np.linspace(-0.05, 1.4, 200))
    axis.contourf(a, b, (a * b - 1) ** 2 / 2, levels=np.linspace(0, 0.6, 13), cmap="Greys", alpha=0.35, extend="max")
    axis.plot(a[0], 1 / a[0], ":", color="black", lw=1, label="minima of C: ab = 1")
    axis.set_xlim(0.8, 2.4)
    axis.set_ylim(-0.05, 1.3)


def _checked(path: str | Path) -> Path:
    target = Path(path)
    if target.suffix not in FORMATS:
        raise InputError(f"figure file {str(path)!r} ends in {target.suffix!r}; expected one of {', '.join(FORMATS)}.")
    if not target.parent.is_dir():
        raise InputError(f"folder {str(target.parent)!r} of the figure does not exist; make it first.")
    return target


def _saved(figure: Any, target: Path) -> Path:
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=140, format=target.suffix.removeprefix("."))
    pyplot().close(figure)
    return write_atomically(target, drawn.getvalue())
