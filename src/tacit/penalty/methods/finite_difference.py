"""The penalty's gradient from a small difference of two (forward) or three (central) gradients.

    H g ≈ (∇Ĉ(ω + s g) − ∇Ĉ(ω)) / s            forward,  error O(s)
    H g ≈ (∇Ĉ(ω + s g) − ∇Ĉ(ω − s g)) / 2s     central,  error O(s²)

For models that have no second derivative. Units keep the side of their kinks at ω (`kinks`), so that the differences
are those of a smooth function; where that cannot be done the error shows it. The error is estimated and reported.
"""

from __future__ import annotations

from tacit.penalty.methods.two_pass import Views, estimate
from tacit.penalty.objective import Objective, Outcome
from tacit.penalty.workers.shards import ShardedViews, is_sharded


def backward(objective: Objective) -> Outcome:
    """Approximate; two gradients a step, three with `central=True`."""
    views = (ShardedViews if is_sharded(objective.model) else Views)(objective, replay_kinks=True)
    return estimate(views, lambda views: step_sizes(views, central=objective.central), central=objective.central)


def step_sizes(views: Views, *, central: bool) -> list[float]:
    """s for each view: the distance r = s‖g‖ balances truncation against rounding.

    r = u^(1/2) max(1, ‖ω‖) forward and u^(1/3) max(1, ‖ω‖) central, with u the rounding unit of the least precise dtype
    (autocast's, inside it): truncation grows like r (r²), the rounding of ω + r g/‖g‖ and of the difference like u/r.
    """
    distance = views.precision ** (1 / 3 if central else 1 / 2) * max(1.0, views.parameter_norm())
    return [distance / norm for norm in views.direction_norms]
