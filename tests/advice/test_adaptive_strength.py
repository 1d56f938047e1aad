"""`AdaptiveStrength`: the strength is that of `match` at the newest measurement, and never beyond its share of λ*."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

import tacit
from cases import labels, numbers
from tacit.advice import AdaptiveStrength
from tacit.advice.matching import SHARE_OF_EDGE

INPUTS, TARGETS = numbers(256, 4, seed=1, dtype=torch.float32), labels(256, 3, 2)


def model_of(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def setting(rate: float = 0.1, **options: Any) -> tuple[Any, ...]:
    model = options.pop("model", None) or model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=options.pop("momentum", 0.0))
    penalty = tacit.GradientPenalty(model, 0.0, micro_batch_size=8, **options.pop("penalty", {}))
    common: dict[str, Any] = {"full": 5, "curvature": True, "loss_fn": F.cross_entropy, "dataset": (INPUTS, TARGETS)}
    common["sample"] = None
    common |= {"every": 5, "window": 2, **options}
    recorder = tacit.Recorder(model, batch_size=64, train_size=256, **common)
    return model, optimizer, penalty, recorder


def train(steps: int, model: Any, optimizer: Any, penalty: Any, recorder: Any, adaptive: Any) -> list[float]:
    strengths = []
    for step in range(steps):
        chosen = slice(64 * (step % 4), 64 * (step % 4) + 64)
        optimizer.zero_grad()
        penalty.backward(lambda x, y: F.cross_entropy(model(x), y), INPUTS[chosen], TARGETS[chosen])
        recorder.after_backward()
        adaptive.step()
        optimizer.step()
        strengths.append(penalty.strength)
    return strengths


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_strength_is_that_of_match_at_the_newest_measurement(momentum: float) -> None:
    model, optimizer, penalty, recorder = setting(momentum=momentum)
    adaptive = AdaptiveStrength(penalty, recorder, optimizer=optimizer, batch_size=8)
    strengths = train(11, model, optimizer, penalty, recorder, adaptive)
    assert [change.step for change in adaptive.changes] == [0, 5, 10]
    advice = tacit.match(recorder.measurement, optimizer=optimizer, batch_size=8, new_batch_size=64)
    assert strengths[10] == advice.strength.value > 0
    assert strengths[0] == strengths[4] != strengths[5] == strengths[9]


def test_it_is_never_beyond_its_share_of_the_edge_also_where_the_sample_settles_nothing() -> None:
    model, optimizer, penalty, recorder = setting(rate=0.5, sample=8)
    penalty.strength = 1e3  # far beyond any edge
    adaptive = AdaptiveStrength(penalty, recorder, optimizer=optimizer, batch_size=8)
    train(1, model, optimizer, penalty, recorder, adaptive)
    (change,) = adaptive.changes
    assert not change.decided
    assert penalty.strength == pytest.approx(SHARE_OF_EDGE * change.largest_stable_strength, rel=1e-12)


def test_a_rate_that_was_lowered_lowers_the_strength() -> None:
    """λ makes up for ε C_reg(B) − ε C_reg(B'), so without a cap it is in proportion to the rate."""
    _, optimizer, penalty, recorder = setting(rate=0.01, every=lambda step: False, full=lambda step: True)
    adaptive = AdaptiveStrength(penalty, recorder, optimizer=optimizer, batch_size=8)
    for rate in (0.01, 0.001):
        optimizer.param_groups[0]["lr"] = rate
        recorder.after_backward()  # nothing moves: the same measurement twice
        adaptive.step()
    first, second = (change.strength for change in adaptive.changes)
    assert second == pytest.approx(first / 10, rel=0.02)  # the factor F of a finite rate is not quite 1


def test_at_a_rate_of_zero_the_strength_stays_and_the_measurement_waits() -> None:
    """The first step of a warm-up and the last of a cosine have rate 0, for which no strength can be matched."""
    _, optimizer, penalty, recorder = setting(rate=0.0, every=lambda step: False, full=lambda step: step == 0)
    penalty.strength = 0.01
    adaptive = AdaptiveStrength(penalty, recorder, optimizer=optimizer, batch_size=8)
    recorder.after_backward()
    adaptive.step()
    assert penalty.strength == 0.01
    assert adaptive.changes == []
    optimizer.param_groups[0]["lr"] = 0.1
    adaptive.step()
    advice = tacit.match(recorder.measurement, optimizer=optimizer, batch_size=8, new_batch_size=64)
    assert penalty.strength == advice.strength.value > 0.01


def test_a_resumed_run_goes_on_with_its_strength() -> None:
    """The whole run, and one whose objects are made anew after 8 steps, between two measurements."""
    found = []
    for resumed in (False, True):
        model, optimizer, penalty, recorder = setting()
        adaptive = AdaptiveStrength(penalty, recorder, optimizer=optimizer, batch_size=8)
        strengths = train(8, model, optimizer, penalty, recorder, adaptive)
        if resumed:
            states = [each.state_dict() for each in (penalty, recorder, adaptive)]
            _, _, penalty, recorder = setting(model=model)
            adaptive = AdaptiveStrength(penalty, recorder, optimizer=optimizer, batch_size=8)
            for each, state in zip((penalty, recorder, adaptive), states, strict=True):
                each.load_state_dict(state)
        strengths += train(4, model, optimizer, penalty, recorder, adaptive)
        found.append(strengths)
        assert [change.step for change in adaptive.changes] == [0, 5, 10]
    assert found[1][8] == found[0][7] > 0
    # A penalty's first step may take another path than later ones: the same gradient up to float32's rounding.
    assert found[1] == pytest.approx(found[0], rel=1e-6)


def test_a_state_of_something_else_is_refused() -> None:
    _, optimizer, penalty, recorder = setting()
    adaptive = AdaptiveStrength(penalty, recorder, optimizer=optimizer, batch_size=8)
    with pytest.raises(tacit.InputError, match=r"the state has no changes, strength"):
        adaptive.load_state_dict(recorder.state_dict())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"full": None}, "makes no full measurements with curvature"),
        ({"curvature": False}, "makes no full measurements with curvature"),
        ({"penalty": {"probability": 0.5}}, "expected every=k"),
    ],
)
def test_what_it_cannot_follow_is_refused(change: dict[str, Any], words: str) -> None:
    _, optimizer, penalty, recorder = setting(**change)
    with pytest.raises(tacit.InputError, match=words):
        AdaptiveStrength(penalty, recorder, optimizer=optimizer, batch_size=8)


def test_adam_is_refused_with_the_way_out() -> None:
    model, _, penalty, recorder = setting()
    adam = torch.optim.Adam(model.parameters())
    with pytest.raises(tacit.InputError, match="search_strength"):
        AdaptiveStrength(penalty, recorder, optimizer=adam, batch_size=8)
