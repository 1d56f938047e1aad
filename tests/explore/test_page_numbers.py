"""The page's functions, run in a browser, give the numbers of `tacit.theory` on the same problem.

Both sides are float64 and differ by the order of additions, so 1e-10 is generous for everything that is not integrated.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chromium import evaluate
from tacit import theory
from tacit.batching import all_orders
from tacit.edges import Step, largest_stable_curvature
from tacit.explore import explore_page
from tacit.problem import Problem
from tacit.theory.flows import gradient_flow_field
from tacit.theory.iterates import heavy_ball_rule, penalized_rule, sgd_rule, walk
from tacit.theory.landscape import Landscape
from tacit.theory.modified_losses import quarter_of
from tacit.theory.orders import sequences_with_replacement, steps_of

CLOSE = 1e-10
KINDS = ("shuffled", "fixed", "mirrored", "with_replacement")
START = (1.7, 0.4)
# One slider at a time, and all that may be combined; n and β are not.
SETTINGS: list[dict[str, float]] = [
    {"batchSize": size, "rate": rate, "inner": inner, "strength": strength, "momentum": momentum, "noise": noise}
    for size, rate, inner, strength, momentum, noise in [
        (2, 0.044, 1, 0.0, 0.0, 1.0),
        (1, 0.03, 1, 0.0, 0.0, 0.7),
        (3, 0.06, 3, 0.0, 0.0, 1.0),
        (6, 0.05, 1, 0.0, 0.0, 1.3),
        (2, 0.02, 1, 0.05, 0.0, 1.0),
        (2, 0.03, 1, 0.0, 0.6, 1.0),
        (2, 0.02, 2, 0.04, 0.0, 1.0),
        (2, 0.03, 1, 0.07, 0.5, 0.9),
    ]
]
for settings in SETTINGS:
    settings["curvature"] = largest_stable_curvature(
        settings["rate"] * (1 - settings["momentum"]),
        strength=settings["strength"],
        step=Step(momentum=settings["momentum"], inner_steps=int(settings["inner"])),
    )
EPOCHS = 6
SCRIPT = """
CASES.map((s) => {
  const problem = makeProblem(s);
  const w = [s.a, s.b];
  const names = ["C", "GD", "SGD"];
  const orders = Object.fromEntries(KINDS.map((kind) => [kind, ordersOf(kind, problem.m, EPOCHS, 5)]));
  const times = [0.1, 1, 2];
  const fields = names.map((name) => modifiedField(problem, s, name));
  const order = orders.shuffled[0];
  return {
    labels: problem.labels,
    losses: problem.targets.map((_, k) => minibatchLoss(problem, k, w)),
    gradients: minibatchGradients(problem, w),
    gradient: gradient(problem, w),
    modified: names.map((name) => modifiedLoss(problem, s, name, w)),
    fields: fields.map((field) => field(w)),
    flows: fields.map((field) => flow(field, w, times)),
    times, orders, order,
    commutator: commutator(problem, order, w),
    orderField: fixedOrderField(problem, s, order)(w),
    regime: regime(problem, s, w),
    edge: edge(s, s.curvature),
    runs: Object.fromEntries(KINDS.map((kind) => [kind, run(problem, s, orders[kind], w)])),
    means: Object.fromEntries(KINDS.filter((kind) => canEnumerate(problem, kind))
      .map((kind) => [kind, Array.from(meanEpoch(problem, s, kind, [...w, 0, 0]))])),
    meanPath: meanPath(problem, s, "shuffled", w, 3),
  };
})
"""


class Product(nn.Module):
    """a·b, the same for every example."""

    def __init__(self) -> None:
        super().__init__()
        self.factors = nn.Parameter(torch.tensor(START, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.factors[0] * self.factors[1]


def half_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * (outputs - targets).square().mean()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the browser computed, one entry for each of SETTINGS: one start of the browser for the whole file."""
    cases = [{**settings, "a": START[0], "b": START[1]} for settings in SETTINGS]
    script = SCRIPT.replace("CASES", json.dumps(cases)).replace("KINDS", json.dumps(KINDS))
    return evaluate(explore_page(), script.replace("EPOCHS", str(EPOCHS)), tmp_path_factory.mktemp("page"))


@pytest.fixture(params=range(len(SETTINGS)), ids=lambda i: " ".join(f"{k}={v:g}" for k, v in SETTINGS[i].items()))
def case(
    request: pytest.FixtureRequest, found: list[dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any], Landscape]:
    settings, page = SETTINGS[request.param], found[request.param]
    labels = torch.tensor(page["labels"], dtype=torch.float64).unsqueeze(1)
    size = int(settings["batchSize"])
    problem = Problem(
        Product(), half_squared_error, (torch.ones_like(labels), labels), batch_size=size, dtype=torch.float64
    )
    return settings, page, Landscape(problem)


def close(found: Any, expected: Tensor | float, *, within: float = CLOSE) -> None:
    torch.testing.assert_close(
        torch.as_tensor(found, dtype=torch.float64),
        torch.as_tensor(expected, dtype=torch.float64).detach(),
        rtol=within,
        atol=within,
    )


def modified_losses(settings: dict[str, Any], scape: Landscape) -> list[Any]:
    """C, C̃_GD and C̃_SGD as `tacit.theory` writes them, with the explicit penalty λ·C_reg added."""
    rate, inner, momentum = settings["rate"], settings["inner"], settings["momentum"]

    def explicit(w: Tensor) -> Tensor:
        return settings["strength"] * theory.implicit_regularizer(scape, w)

    def gd(w: Tensor) -> Tensor:
        amplified = rate / inner * (1 + momentum) / (1 - momentum)
        return theory.modified_loss_gd(scape, w, learning_rate=amplified) + explicit(w)

    def sgd(w: Tensor) -> Tensor:
        if momentum:
            own = theory.modified_loss_momentum(scape, w, effective_learning_rate=rate, momentum=momentum)
        else:
            own = theory.modified_loss_nstep(scape, w, effective_learning_rate=rate, inner_steps=inner)
        return own + explicit(w)

    return [scape.loss, gd, sgd]


def rule_of(settings: dict[str, Any], scape: Landscape) -> Any:
    """One update of (ω, buffer): the theory's rules, and for λ with n or β their composition."""
    inner, momentum, strength = int(settings["inner"]), settings["momentum"], settings["strength"]
    plain = penalized_rule(scape, strength=strength) if strength else sgd_rule(scape)
    heavy = heavy_ball_rule(scape, momentum=momentum)

    def penalized_gradient(w: Tensor, examples: Tensor) -> Tensor:
        def loss(point: Tensor) -> Tensor:
            return scape.loss_of(point, examples) + strength * quarter_of(
                scape.gradient_of(point, examples).square().sum()
            )

        return torch.func.grad(loss)(w)

    def rule(state: Tensor, examples: Tensor, rate: Tensor) -> Tensor:
        if momentum and not strength:
            return heavy(state, examples, rate * (1 - momentum))
        w, buffer = state
        if momentum:
            buffer = momentum * buffer + penalized_gradient(w, examples)
            return torch.stack([w - rate * (1 - momentum) * buffer, buffer])
        for _ in range(inner):
            w = plain(w, examples, rate / inner)
        return torch.stack([w, buffer])

    return rule


def first_state(scape: Landscape) -> Tensor:
    return torch.stack([scape.start, torch.zeros_like(scape.start)])


def walked(settings: dict[str, Any], scape: Landscape, rows: Tensor, state: Tensor) -> Tensor:
    """The states (ω, buffer) at the ends of the given sequences of minibatches."""
    rates = torch.tensor([settings["rate"]], dtype=torch.float64)
    return walk(scape, rule_of(settings, scape), state.unsqueeze(0), rates, steps_of(scape, rows))[0]


def test_minibatch_losses_and_gradients(case: Any) -> None:
    _, page, scape = case
    close(page["losses"], scape.minibatch_losses(scape.start))
    close(page["gradients"], scape.minibatch_gradients(scape.start))
    close(page["gradient"], scape.gradient(scape.start))


def test_modified_losses_and_their_gradients(case: Any) -> None:
    settings, page, scape = case
    for value, field, loss in zip(page["modified"], page["fields"], modified_losses(settings, scape), strict=True):
        close(value, loss(scape.start))
        close(field, gradient_flow_field(loss)(scape.start))


@pytest.mark.parametrize("case", [0, 7], indirect=True)  # the fields are compared for all settings, above
def test_flows(case: Any) -> None:
    """The page's integrator keeps each step's error below 1e-12; over some hundred steps that stays below 1e-10."""
    settings, page, scape = case
    field = gradient_flow_field(modified_losses(settings, scape)[2])
    close(page["flows"][2], theory.flow(field, scape.start, time=page["times"][-1], times=page["times"]))


def test_the_commutator_of_one_order(case: Any) -> None:
    settings, page, scape = case
    expected = theory.commutator(scape, order=page["order"])
    close(page["commutator"], expected)
    loss = modified_losses(settings, scape)[2]
    close(page["orderField"], gradient_flow_field(loss)(scape.start) + settings["rate"] * expected)


def test_the_regime(case: Any) -> None:
    settings, page, scape = case
    expected = theory.regime(scape, learning_rate=settings["rate"], inner_steps=int(settings["inner"]))
    for name, value in (
        ("curvature", expected.curvature),
        ("reach", expected.reach),
        ("ratio", expected.next_to_first),
    ):
        close(page["regime"][name], value)
    assert page["regime"]["verdict"] == expected.verdict


def test_the_edge_is_where_tacit_edges_has_it(case: Any) -> None:
    settings, page, _ = case
    close(page["edge"], 1.0)  # at the curvature that the fixture `found` gave to the page
    assert settings["curvature"] > 0


@pytest.mark.parametrize("kind", KINDS)
def test_one_run_along_the_page_s_own_order(case: Any, kind: str) -> None:
    settings, page, scape = case
    order = list(itertools.chain(*page["orders"][kind]))
    rule, rate = rule_of(settings, scape), torch.tensor(settings["rate"], dtype=torch.float64)
    states = [first_state(scape)]
    for k in order:
        states.append(rule(states[-1], scape.batches[k], rate))
    points = torch.stack(states)[:, 0]
    close(page["runs"][kind], points)
    if not settings["momentum"] and not settings["strength"]:  # and the public function
        close(
            points, theory.sgd(scape, learning_rate=settings["rate"], order=order, inner_steps=int(settings["inner"]))
        )


@pytest.mark.parametrize("kind", KINDS)
def test_the_mean_over_orders(case: Any, kind: str) -> None:
    settings, page, scape = case
    m = scape.batches_per_epoch
    if kind == "with_replacement":
        if m == 6:
            assert kind not in page["means"]  # 46,656 sequences: the theory refuses them as well
            return
        rows = sequences_with_replacement(m, length=m)
    else:
        rows = torch.tensor(list(all_orders(m)))
    if kind == "mirrored":
        rows = torch.cat([rows, rows.flip(1)], dim=1)
    ends = walked(settings, scape, rows, first_state(scape))
    numbers = 4 if settings["momentum"] else 2  # without momentum the buffer is not used
    close(page["means"][kind][:numbers], ends.mean(0).reshape(-1)[:numbers])
    if not settings["momentum"] and not settings["strength"]:
        own = {"learning_rate": settings["rate"], "inner_steps": int(settings["inner"])}
        if kind == "with_replacement":
            expected = theory.mean_iterate_with_replacement(scape, **own)
        else:
            expected = theory.mean_iterate(scape, mirrored=kind == "mirrored", **own)
        close(page["means"][kind][:2], expected.mean)


def test_the_mean_path_takes_the_mean_again_after_every_epoch(case: Any) -> None:
    settings, page, scape = case
    rows = torch.tensor(list(all_orders(scape.batches_per_epoch)))
    beta = settings["momentum"]
    shift = settings["rate"] * beta  # bare rate · β/(1−β)
    state, points = first_state(scape), [scape.start]
    for _ in range(3):
        state = walked(settings, scape, rows, state).mean(0)
        points.append(state[0] - shift * state[1])
    close(page["meanPath"], torch.stack(points))


def test_orders_are_what_their_names_say(found: list[dict[str, Any]]) -> None:
    for page in found:
        orders = page["orders"]
        m = len(page["losses"])
        for kind in ("shuffled", "fixed", "mirrored"):
            assert all(sorted(row) == list(range(m)) for row in orders[kind])
        assert all(row == orders["fixed"][0] for row in orders["fixed"])
        assert all(
            there == back[::-1] for there, back in zip(orders["mirrored"][::2], orders["mirrored"][1::2], strict=True)
        )
        assert all(0 <= k < m for row in orders["with_replacement"] for k in row)
    three = found[0]["orders"]
    assert len({tuple(row) for row in three["shuffled"]}) > 1
    assert any(len(set(row)) < 3 for row in three["with_replacement"])


def test_the_page_asks_for_nothing_from_a_network(tmp_path: Path) -> None:
    page = explore_page()
    for word in ("http://", "https://", "src=", "@import", "fetch(", "url("):
        assert word not in page, word
