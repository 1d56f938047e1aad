"""What `tacit verify --update NAME` takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tacit.theory.landscape import Landscape
from tacit.theory.logarithm import Update
from tacit.theory.memory import WithMemory
from tacit.theory.sampled_penalty import penalty_every_update, penalty_with_probability_update, sampled_penalty_update
from tacit.theory.sharpness_aware import sam_from_rows
from tacit.theory.updates import (
    adam,
    averaged_gd,
    extragradient,
    gd_update,
    heavy_ball,
    lookahead,
    mean_adam_epoch,
    muon,
    nesterov,
    normalized_gd,
    rmsprop,
    runge_kutta,
    sam,
    schedule_free,
    shrinking_sam,
    smooth_lion,
)

# Memories are short (β = 0.5): the series of a long one converges later.
EXAMPLES: dict[str, Callable[[Landscape], Update | WithMemory]] = {
    "gd": gd_update,
    "heavy_ball": partial(heavy_ball, momentum=0.5),
    "nesterov": partial(nesterov, momentum=0.5),
    "adam": partial(adam, beta1=0.5, beta2=0.6, delta=0.1),
    "adamw": partial(adam, beta1=0.5, beta2=0.6, delta=0.1, weight_decay=0.3),
    "rmsprop": partial(rmsprop, decay=0.6, delta=0.1),
    "muon": partial(muon, momentum=0.5, delta=1.0),
    "lookahead": lookahead,
    "ema": partial(averaged_gd, keep=0.5),
    "schedule_free": partial(schedule_free, beta=0.9, weight=0.5),
    "adam_over_orders": mean_adam_epoch,
    "adamw_over_orders": partial(mean_adam_epoch, weight_decay=0.3),
    "sam": sam,
    "sam_from_rows": sam_from_rows,
    "sampled_penalty": sampled_penalty_update,
    "sampled_penalty_once_each": partial(sampled_penalty_update, draws="once each"),
    "penalty_every": penalty_every_update,
    "penalty_with_probability": penalty_with_probability_update,
    "shrinking_sam": shrinking_sam,
    "normalized_gd": normalized_gd,
    "smooth_lion": partial(smooth_lion, beta1=0.5, beta2=0.6, delta=0.1),
    "extragradient": extragradient,
    "runge_kutta": runge_kutta,
}
