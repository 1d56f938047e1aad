"""Learning-rate schedules, the paper's and a cosine, and one of a strength, as pure functions of the progress."""

from __future__ import annotations

import math
from collections.abc import Callable

from tacit._util.arguments import finite_number, whole_number
from tacit._util.errors import InputError

SCHEDULES = ("constant", "paper_decay", "cosine")


def paper_decay(step: int, total_steps: int) -> float:
    """The factor on the learning rate at one step: constant for half of training, then halved every tenth of it.

    factor = 2^−k with k = 0 in the first half, 1 in the sixth tenth, …, 5 in the last tenth             (section 4)

    >>> [paper_decay(step, 10) for step in range(10)]
    [1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125]
    """
    if not 0 <= step < total_steps:
        raise InputError(f"step={step} with total_steps={total_steps}; expected 0 <= step < total_steps.")
    tenths_done = step * 10 // total_steps  # integers: a float quotient puts some steps on the wrong side
    return 0.5 ** max(0, tenths_done - 4)


def cosine(step: int, total_steps: int) -> float:
    """The factor (1 + cos(π · step / total_steps)) / 2: 1 at the first step, near 0 at the last.

    >>> [round(cosine(step, 4), 3) for step in range(4)]
    [1.0, 0.854, 0.5, 0.146]
    """
    if not 0 <= step < total_steps:
        raise InputError(f"step={step} with total_steps={total_steps}; expected 0 <= step < total_steps.")
    return (1 + math.cos(math.pi * step / total_steps)) / 2


def schedule(name: str, total_steps: int) -> Callable[[int], float]:
    """The factor as a function of the step alone: what `torch.optim.lr_scheduler.LambdaLR` takes.

    Past the last step it stays at the last factor, because torch steps a scheduler once after the last update.

    >>> schedule("paper_decay", 10)(10)
    0.03125
    """
    if total_steps < 1:
        raise InputError(f"total_steps={total_steps}; expected at least one step.")
    if name == "constant":
        return lambda step: 1.0
    if name in ("paper_decay", "cosine"):
        factor = paper_decay if name == "paper_decay" else cosine
        return lambda step: factor(min(step, total_steps - 1), total_steps)
    raise InputError(f"schedule={name!r} is unknown; use one of {', '.join(SCHEDULES)}.")


def early(strength: float, total_steps: int, *, share: float = 0.5) -> Callable[[int], float]:
    """A strength for the first `share` of the steps, and 0 after them: a function for `GradientPenalty(strength=)`.

    The later steps cost what plain ones do. In pilots the first half had nearly the whole gain of all steps; a fixed
    strength that came on late lost runs. As a ratio, `tacit.Relative(early(0.4, steps))`.

    >>> [early(0.1, 4)(step) for step in range(4)]
    [0.1, 0.1, 0.0, 0.0]
    """
    value, steps = finite_number("strength", strength), whole_number("total_steps", total_steps, at_least=1)
    if not 0 < finite_number("share", share) <= 1:
        raise InputError(f"share={share}; expected 0 < share <= 1, the part of the run with a penalty.")
    last = max(1, round(share * steps))
    return lambda step: value if step < last else 0.0
