"""What cannot be computed is refused in one sentence that says what would be right: a call in a row, and its words.

Refusals that need more than a call, or after which something must be as it was, are tested beside what they protect.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tacit
from cases import labels, numbers, wide_net
from tacit import (
    BatchSampler,
    FactoredSGD,
    GradientPenalty,
    NStepSGD,
    Problem,
    Recorder,
    Relative,
    SharpnessAware,
    edges,
)
from tacit._util.lanczos import extreme_eigenpairs
from tacit._util.random_generators import generator
from tacit.advice.finite_rate import finite_rate_factor
from tacit.advice.search import search_strength
from tacit.batching import ORDERS, all_orders, batches_per_epoch, epoch_batches
from tacit.convert import from_strength, to_strength
from tacit.diagnostics import Spectrum
from tacit.report.scatter import Cell
from tacit.schedules import early, paper_decay, schedule
from tacit.sinks import Tracker, write
from tacit.studies.data.load import load
from tacit.studies.describe.library import library
from tacit.studies.execute.executor import Attempts
from tacit.theory import (
    Landscape,
    compare_flows,
    corrections,
    flow,
    mean_iterate_with_replacement,
    modified_flow,
    modified_flow_symbolic,
    preconditioned_loss,
    problems,
    regime,
    resummed_mean,
    sam_terms,
    verify,
)
from tacit.theory import modified_losses as losses

Refusals = list[tuple[Callable[[], object], str]]  # a call, and a pattern of its message


def of_each(call: Callable[[Any], object], values: list[Any], words: str) -> Refusals:
    """The same words about each of some values."""
    return [(lambda value=value: call(value), words) for value in values]


def with_options(call: Callable[..., object], *cases: tuple[dict[str, Any], str]) -> Refusals:
    """A call with some options, each of which is refused in words of its own."""
    return [(lambda options=options: call(**options), words) for options, words in cases]


# -- batches, edges, schedules, conversions ---------------------------------------------------------------------------
NOT_FINITE = [math.nan, math.inf, -math.inf]


def weight() -> nn.Parameter:
    return nn.Parameter(torch.ones(1))


def sampled_edge(rate: float = 0.1, curvatures: tuple[float, ...] = (1.0,), **options: Any) -> float:
    return edges.largest_stable_strength_sampled(rate, curvatures, **{"sampled": 1, **options})


def n_step(**options: Any) -> NStepSGD:
    return NStepSGD([weight()], **{"lr": 0.1, **options})


TOP: Refusals = [
    *of_each(
        lambda order: epoch_batches(10, 4, order=order),
        list(ORDERS),
        r"train_size=10 is not a multiple of batch_size=4.*train_size=8",
    ),
    (lambda: all_orders(9), "9 minibatches have 362880 orders"),
    (lambda: all_orders(0), "batches=0"),
    (lambda: batches_per_epoch(4, 0), "batch_size=0 with train_size=4"),
    (lambda: batches_per_epoch(4, 5), "batch_size=5 with train_size=4"),
    (lambda: batches_per_epoch(0, 1), "batch_size=1 with train_size=0"),
    (lambda: batches_per_epoch(4, -2), "batch_size=-2 with train_size=4"),
    (lambda: batches_per_epoch(4, 2.0), "batch_size is a float"),
    (lambda: batches_per_epoch(4, 2, remainder="pad"), "remainder='pad' is unknown; use one of refuse, drop, keep"),
    (lambda: BatchSampler([1, 2, 3, 4, 5], 5), r"train_size is a list; .* Use len\(dataset\)"),
    (lambda: BatchSampler(4, 2, order="random"), "order='random' is unknown"),
    (lambda: epoch_batches(4, 2, order="random"), "order='random' is unknown; use one of shuffled"),
    (lambda: generator(0, "noise"), "'noise' is unknown; use one of init, order, augment, probe"),
    (lambda: edges.stability_limit(momentum=1.0), "momentum=1.0; expected 0 <= momentum < 1"),
    (lambda: edges.stability_limit(inner_steps=0), "inner_steps=0"),
    (lambda: edges.largest_stable_curvature(0.0), "learning_rate=0.0"),
    (lambda: edges.largest_stable_curvature(0.1, strength=-1.0), "strength=-1.0"),
    (lambda: edges.largest_stable_strength(0.1, 0.0), "curvature=0.0"),
    (lambda: edges.largest_stable_learning_rate(float("nan")), "curvature=nan"),
    (lambda: sampled_edge(0.0), "learning_rate=0.0"),
    (lambda: sampled_edge(0.1, (1.0, math.nan)), "curvatures=nan"),
    (lambda: sampled_edge(squares=[-1.0]), "squares=-1.0"),
    (lambda: sampled_edge(0.1, ()), "0 curvatures and 0 squares"),
    (lambda: sampled_edge(squares=[1.0, 2.0]), "1 curvatures and 2"),
    (lambda: sampled_edge(0.1, (1.0, 2.0), sampled=3), "sampled=3 of 2 micro-batches"),
    (lambda: sampled_edge(momentum=1.0), "momentum=1.0"),
    (lambda: paper_decay(10, 10), "step=10 with total_steps=10"),
    (lambda: schedule("linear", 10), "'linear' is unknown; use one of constant, paper_decay, cosine"),
    (lambda: schedule("paper_decay", 0), "total_steps=0"),
    *of_each(lambda share: early(0.1, 10, share=share), [0, -0.5, 1.5, "half"], "share="),
    (lambda: early(-1, 10), "strength=-1"),
    (lambda: early(0.1, 0), "total_steps=0"),
    (lambda: to_strength("sam", 0.05), "no context; expected gradient_norm"),
    (lambda: to_strength("trl", 0.05, learning_rate=0.1), "got learning_rate; expected none"),
    (lambda: from_strength("SAM", 0.05), "'SAM' is unknown; use one of fullbatchtraining"),
    (lambda: to_strength("sam", 0.05, gradient_norm=0.0), "gradient_norm=0.0"),
    *of_each(lambda value: to_strength("trl", value), NOT_FINITE, "coefficient=.*expected a finite number"),
    *of_each(lambda value: from_strength("trl", value), NOT_FINITE, "strength=.*expected a finite number"),
    (lambda: write([], {"a": 1.0}, step=1), "sink is a list without add_scalar"),
    (lambda: Tracker({}), "run is a dict without log"),
    (lambda: extreme_eigenpairs(lambda v: v, np.ones(4), count=5), "expected between 1 and the size 4"),
    (lambda: n_step(inner_steps=0), "inner_steps=0"),
    (lambda: n_step(inner_steps=2.0), "inner_steps=2.0"),
    (lambda: n_step(inner_steps=True), "inner_steps=True"),
    (lambda: n_step(inner_steps=2, lr=-0.1), "lr=-0.1"),
    (lambda: n_step(inner_steps=2, lr=float("nan")), "lr=nan"),
    (lambda: n_step(inner_steps=2, weight_decay=-1.0), "weight_decay=-1.0"),
    (
        lambda: NStepSGD([{"params": [weight()], "inner_steps": n} for n in (1, 2)], lr=0.1, inner_steps=1),
        r"inner_steps \[1, 2\]",
    ),
]


# -- a problem: model, loss and batches -------------------------------------------------------------------------------
def problem(loss_fn: Any = F.mse_loss, model: nn.Module | None = None, **options: Any) -> Problem:
    """Six examples of three numbers, with two targets each."""
    dataset = numbers(6, 3, seed=0), numbers(6, 2, seed=1)
    model = model or nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    return Problem(model, loss_fn, options.pop("dataset", dataset), **{"batch_size": 2, **options})


def per_example(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().mean(1)


PROBLEM: Refusals = [
    *with_options(
        problem,
        ({"batch_size": 4}, "not a multiple"),
        ({"batch_size": None}, "exactly one of batch_size and batches"),
        ({"batches": [[0]]}, "exactly one of batch_size and batches"),
        ({"batch_size": None, "batches": [[0, 1], [1, 2]]}, "4 indices, 3 of them distinct"),
        ({"batch_size": None, "batches": [[0, 6]]}, r"0\.\.5"),
        ({"batch_size": None, "batches": []}, "hold 0 indices"),
        ({"batch_size": None, "batches": [[0, 1], []]}, r"sizes \[2, 0\]"),
        ({"weight_decay": -1.0}, "weight_decay=-1.0"),
        ({"weight_decay": math.nan}, "weight_decay=nan"),
        ({"weight_decay": math.inf}, "weight_decay=inf"),
        ({"loss_fn": per_example, "batch_size": 1}, "expected a scalar"),
        ({"loss_fn": per_example, "batch_size": 2}, "expected a scalar"),
        ({"loss_fn": lambda y, t: F.mse_loss(y, t) * math.nan}, "loss of the first minibatch is nan"),
        ({"model": nn.Flatten(), "dataset": (torch.ones(6, 2),) * 2}, "no trainable parameters"),
        ({"dataset": (torch.zeros(3, 3), torch.zeros(2, 2))}, "3 inputs and 2 targets"),
        ({"dataset": (torch.zeros(0, 3), torch.zeros(0, 2))}, "empty"),
        ({"dataset": "mnist"}, "dataset is a str"),
        ({"dataset": 3}, "dataset is a int"),
    ),
    # A float plus a decay is a tensor, and would slip through; a sum plus a decay is no multiple of the mean.
    *of_each(
        lambda decay: problem(lambda y, t: F.mse_loss(y, t).item(), weight_decay=decay),
        [0.0, 0.3],
        "loss_fn returned a float",
    ),
    *of_each(lambda decay: problem(nn.MSELoss(reduction="sum"), weight_decay=decay), [0.0, 0.3], "so it is a sum"),
]


# -- the penalty ------------------------------------------------------------------------------------------------------
def linear() -> nn.Module:
    return nn.Linear(2, 1).double()


def penalty(**options: Any) -> GradientPenalty:
    return GradientPenalty(**{"model": linear(), "strength": 1.0, **options})


def factored(**options: Any) -> FactoredSGD:
    return FactoredSGD(**{"model": linear(), "lr": 0.1, **options})


def sharpness_aware(**options: Any) -> SharpnessAware:
    return SharpnessAware(**{"model": wide_net().double(), "radius": 0.1, **options})


def step(loss_of: Callable[[nn.Module], Any], **options: Any) -> object:
    """One penalised step with the loss as a function of the model."""
    made = penalty()
    return made.backward(lambda: loss_of(made.model), **options)


def two_strengths() -> object:
    model = nn.Linear(2, 1)
    groups = [{"params": [model.weight], "strength": 0.1}, {"params": [model.bias], "strength": 0.2}]
    return FactoredSGD(model, 0.1, params=groups).step(lambda: model(torch.ones(1, 2)).mean())


def mean_output(model: nn.Module, rows: int = 3) -> Tensor:
    return model(torch.ones(rows, 2).double()).mean()


def two_views() -> object:
    made = penalty(method="gram")
    return made.backward(lambda: mean_output(made.model), second_view=lambda: mean_output(made.model))


PENALTY: Refusals = [
    *with_options(
        penalty,
        ({"strength": -1.0}, "strength=-1.0"),
        ({"strength": "big"}, "strength='big'"),
        ({"strength": float("nan")}, "strength=nan"),
        ({"method": "gramm"}, "'gramm' is unknown; use one of auto, gram"),
        ({"model": nn.ReLU()}, "no trainable parameters"),
        ({"model": [1]}, "model is a list"),
        ({"model": nn.LazyLinear(3)}, "lazy parameters"),
        ({"exclude": ["nope"]}, "'nope' matches no"),
        ({"exclude": ["*"]}, "leaves no parameter"),
        ({"exclude": [1]}, "exclude holds 1"),
        ({"every": 0}, "every=0"),
        ({"every": 2.5}, "every=2.5"),
        ({"probability": 2.0}, "probability=2.0"),
        ({"every": 2, "probability": 0.5}, "at most one"),
        ({"micro_batch_size": 0}, "micro_batch_size=0"),
        ({"check_every": -3}, "check_every=-3"),
        ({"generators": [1]}, "holds a int"),
        ({"when_uncertain": "maybe"}, "when_uncertain='maybe' is unknown; use 'exact', 'raise' or 'warn'"),
        ({"norm_of": "batch"}, "norm_of='batch' is unknown; use 'micro_batch' or 'global_batch'"),
        ({"norm_of": "global_batch", "micro_batch_size": 2}, "micro_batch_size=2 with norm_of='global_batch'"),
        ({"sampled": 0, "micro_batch_size": 4}, "sampled"),
        ({"sampled": 1.5, "micro_batch_size": 4}, "sampled"),
        ({"sampled": 1, "norm_of": "global_batch"}, "at most one of them"),
    ),
    *of_each(lambda ratio: penalty(largest_ratio=ratio), [0.0, -1.0, math.inf, "one"], "largest_ratio"),
    *of_each(
        lambda count: step(mean_output, step=count),
        [-1, 0.5, "3"],
        "step=.*; expected a whole number of at least 0",
    ),
    (lambda: penalty(micro_batch_size=2).backward(lambda: torch.ones(())), "got no batch"),
    (lambda: penalty().backward(torch.ones(())), "got a Tensor"),
    (lambda: penalty().loss(mean_output(linear())), "loss got a Tensor; expected a function"),
    (two_views, r"second_view with method='gram'.* Use method='double_backward'"),
    (lambda: step(lambda m: torch.ones(())), "without a graph"),
    (lambda: step(lambda m: None), "NoneType"),
    (lambda: step(lambda m: m(torch.ones(3, 2).double())), r"shape \(3, 1\)"),
    (lambda: step(lambda m: m.weight.sum() * torch.nan), "the loss is nan"),
    (lambda: step(lambda m: mean_output(m, rows=0)), "the loss is nan.*empty batch"),
    *of_each(lambda ratio: Relative(ratio), [0.0, -1.0, "much"], "expected"),
    *of_each(lambda smoothing: Relative(0.4, smoothing=smoothing), [0.0, 2.0], "expected"),
    *of_each(lambda cap: Relative(0.4, cap=cap), [0.0, math.inf], "expected"),
    *of_each(lambda start: Relative(0.4, start=start), [0.0, 20.0], "expected"),
    (lambda: factored(strength=Relative(0.4)), r"FactoredSGD got strength=Relative\(0.4\).*Use GradientPenalty"),
    *with_options(
        factored,
        ({"lr": -0.1}, "lr=-0.1"),
        ({"strength": len}, "strength="),
        ({"momentum": -0.1}, "momentum=-0.1"),
        ({"dampening": "x"}, "dampening='x'"),
        ({"nesterov": True}, "nesterov=True with momentum=0"),
        ({"momentum": 0.9, "dampening": 0.1, "nesterov": True}, r"nesterov=True.*dampening=0\.1"),
        ({"micro_batch_size": 0}, "micro_batch_size=0"),
        (
            {"params": [{"params": nn.Linear(3, 2).parameters()}]},
            r"shape \(2, 3\) that is no trainable parameter of the model",
        ),
    ),
    (lambda: factored().step(None), "no closure"),
    (lambda: factored().step(), "no closure"),
    (
        lambda: factored(micro_batch_size=2).step(lambda: torch.ones(())),
        r"got no batch; expected step\(closure, inputs, targets\)",
    ),
    (lambda: factored().add_param_group({"params": [weight()]}), "no trainable parameter of the model"),
    (two_strengths, r"strengths \[0\.1, 0\.2\]; expected one"),
    *with_options(
        sharpness_aware,
        ({"radius": -0.1}, r"radius=-0\.1; expected a finite number that is not negative\."),
        ({"radius": torch.inf}, r"radius=inf; expected a finite number that is not negative\."),
        ({"radius": "large"}, r"radius='large'; expected a finite number that is not negative\."),
        ({"sampled": 0}, r"sampled=0; expected a whole number of at least 1\."),
        ({"sampled": 0.5}, r"sampled=0\.5; expected a whole number of at least 1\."),
        ({"generators": [3]}, r"generators holds a int; expected torch\.Generator objects\."),
        ({"exclude": "9.*"}, r"exclude='9\.\*' matches no trainable parameter"),
        ({"check_every": -1}, r"check_every=-1; expected a whole number of at least 0\."),
    ),
]


# -- diagnostics and advice -------------------------------------------------------------------------------------------
def recorder(**options: Any) -> Recorder:
    return Recorder(**{"model": linear(), "batch_size": 8, "train_size": 64, **options})


def measured(rows: int = 8, loss: Any = F.cross_entropy, **options: Any) -> object:
    """Eight examples of three numbers, of three classes."""
    dataset = numbers(8, 3, seed=1)[:rows], labels(8, 3, 2)[:rows]
    return tacit.measure(nn.Linear(3, 3).double(), loss, options.pop("dataset", dataset), **options)


def searched(result: object, **options: Any) -> object:
    return search_strength(lambda strength: result, start=0.1, **options)


FLAT = Spectrum((1.0,), (1.0,), 1.0, 0.0, 100)
X, Y = numbers(8, 3, seed=1), labels(8, 3, 2)

DIAGNOSTICS: Refusals = [
    *with_options(
        recorder,
        ({"window": 1}, "at least 2 steps"),
        ({"window": 4, "batch_size": 32}, "Use window=2"),
        ({"every": 3, "window": 8}, "do not overlap"),
        ({"batch_size": 65}, "expected 1 to 64"),
        ({"full": 10}, "loss_fn and dataset"),
        ({"path": "no/such/folder/rows.jsonl"}, "does not exist"),
        ({"every": 0}, "at least 1"),
        ({"layers": "norm", "model": nn.LayerNorm(2)}, "expected 'all' or 'norms'"),
    ),
    (lambda: recorder().after_backward(), "between backward and zero_grad"),
    (lambda: recorder(every=5, window=3).load_state_dict({"steps": 3}), "the state has no rows, squares, sum"),
    *with_options(
        measured,
        ({"dataset": (X, Y + 7)}, "targets that fit the loss"),
        ({"loss": nn.CrossEntropyLoss(reduction="sum")}, "Use reduction='mean'"),
        ({"loss": nn.CrossEntropyLoss(reduction="none")}, "expected a scalar"),
        ({"loss": None}, r"measure\(model, loss_fn, dataset\)"),
        ({"rows": 0}, "empty"),
        ({"rows": 1}, "one example"),
        ({"batch_size": 9}, "expected 1 to 8"),
        ({"dataset": (X[:, :2], Y)}, "inputs that fit the model"),
        ({"dataset": (X, Y[:5])}, "as many of each"),
        ({"confidence": 95}, "between 0 and 1"),
        ({"sample": 1}, "at least 3"),
        ({"learning_rate": -1.0}, "positive"),
    ),
    (lambda: finite_rate_factor(FLAT, learning_rate=0.1, momentum=1.0), "expected 0 <= momentum < 1"),
    (
        lambda: finite_rate_factor(FLAT, learning_rate="0.1"),
        r"learning_rate='0\.1'; expected a positive number",
    ),
    *of_each(lambda factors: searched(iter([]), factors=factors), [(), (1,), (1, 1.0), 2.0], "factors="),
    (lambda: searched([0.5] * 12), "returned a list; expected a generator"),
    (lambda: searched(0.5), "returned a float; expected a generator"),
    (lambda: searched(iter([torch.zeros(2)])), "yielded tensor.*expected one number"),
    (lambda: searched(iter([None])), "yielded None; expected one number"),
]


# -- studies and their report -----------------------------------------------------------------------------------------
STUDIES: Refusals = [
    (lambda: load("mnist2d"), "mnist1d"),
    (lambda: library("mnist1d", "huge"), "use one of quick, standard, small, paper"),
    (lambda: library("cifar10", "quick"), "use one of mnist1d"),
    (lambda: library("mnist1d", "paper"), "use one of cifar10, fashion_mnist"),
    *of_each(Attempts, [0, -1, True, 1.5], "attempts="),
    (lambda: Cell((0, 1, 1), np.array([0.1, 0.2, 0.3])), "the seed 1 appears twice"),
]


# -- theory -----------------------------------------------------------------------------------------------------------
def shrink(w: Tensor, rate: Any) -> Tensor:
    return w - rate * w


def logistic() -> Problem:
    return problems.logistic()


def moves_at_rate_zero() -> object:
    scape = Landscape(logistic())
    return modified_flow(lambda w, rate: 0.99 * w - rate * scape.gradient(w)).corrections(scape.start)


def symbolic(update: Any, **options: Any) -> Any:
    return modified_flow_symbolic(update, **{"order": 1, **options})


THEORY: Refusals = [
    (lambda: corrections.expected_second_correction(problems.valley()), "at least three examples"),
    (lambda: corrections.order_correction(logistic(), order=(0, 0, 1, 2)), "expected each index once"),
    (
        lambda: corrections.sgd_second_correction_estimate(logistic(), signs=torch.ones(2, 3)),
        "rows of 4 signs",
    ),
    (lambda: resummed_mean(problems.tanh_mlp(hidden=60), learning_rate=0.01), "at most 200"),
    *of_each(
        lambda time: flow(lambda w: -w, torch.ones(1), time=time),
        [-1.0, math.inf],
        "finite time of at least 0",
    ),
    (lambda: flow(lambda w: w**3, torch.ones(1, dtype=torch.float64), time=1.0), "could not be integrated"),
    (lambda: flow(lambda w: -w, torch.ones(1), time=1.0, times=[0.5, 2.0]), "between 0 and time=1"),
    (lambda: flow(lambda w: -w, torch.ones(1), time=1.0, times=[0.6, 0.2]), "increasing"),
    (lambda: verify(nn.Linear(2, 2)), r"problem is a Linear; expected a tacit\.Problem"),
    (lambda: verify(logistic(), learning_rates=[0.1, 0.1], only="GD against C̃_GD"), "at least three"),
    (lambda: verify(logistic(), only="AdaGrad"), "matches no statement"),
    (lambda: mean_iterate_with_replacement(problems.logistic(batches=6), learning_rate=0.1), "46656 sequences"),
    (lambda: modified_flow(shrink, order=1).correction(2), "expected 0 <= k <= 1"),
    *of_each(
        lambda duration: modified_flow(shrink, duration=duration),
        [0.0, -1.0, math.nan, math.inf],
        "expected a finite positive number",
    ),
    (lambda: modified_flow(shrink, method="fft"), "expected one of jets, nodes"),
    (moves_at_rate_zero, "at learning rate 0; expected the identity"),
    (
        lambda: losses.implicit_regularizer(logistic(), torch.zeros(5, dtype=torch.float64)),
        "expected a flat vector of 3",
    ),
    (lambda: losses.expected_minibatch_variance(1, 1), "at least 2 examples"),
    (lambda: preconditioned_loss(lambda w, e: w, Landscape(logistic())), "expected preconditioner="),
    (lambda: compare_flows(problems.quadratic(), learning_rate=0.1, steps=5), "expected an even number"),
    (lambda: compare_flows(problems.quadratic(), learning_rate=0.1, flows=("Newton",)), "flow 'Newton' is unknown"),
    (lambda: compare_flows(problems.quadratic(), learning_rate=0.0), "learning_rate=0.0"),
    *of_each(
        lambda rate: regime(logistic(), learning_rate=rate),
        [0.0, -0.1, math.nan, math.inf],
        "expected a finite positive number",
    ),
    (lambda: regime(logistic(), learning_rate=0.01, inner_steps=0), "inner_steps=0"),
    (lambda: regime(logistic(), learning_rate=0.01, probes=0), "probes=0"),
    (lambda: sam_terms(logistic(), rows=9), "expected 1 to 8"),
    (lambda: sam_terms(problems.logistic(batches=20), rows=20), "Use fewer rows"),
    (lambda: symbolic(lambda p, step: step(p)), "add up to 0; expected 1"),
    (lambda: symbolic(lambda p, step: 0.5 * p + step(p)), "add up to 1/2; expected 1"),
    (lambda: symbolic(lambda p, step: p + step(2 * p)), "add up to 2; expected 1"),
    (lambda: symbolic(lambda p, step: p + float("nan") * step(p)), "expected a finite number"),
    (lambda: symbolic(lambda p, step: p + 1j * step(p)), "expected a number"),
    (lambda: symbolic(lambda p, step: p + "half" * step(p)), "expected a number"),
    (lambda: symbolic(lambda p, step: p + step(p) / 0), "divided by zero"),
    (lambda: symbolic(lambda p, step: p + 1), "expected a point"),
    (lambda: symbolic(lambda p, step: None), "expected a point"),
    (lambda: symbolic(lambda p, step: p + step(p + step(p)) - step(p)).modified_loss(), "f₀ = 0"),
    (lambda: symbolic(lambda p, step, average: average(p, 0.5) + step(p)), "moves without a step"),
    (lambda: symbolic(lambda p, step, average: p + average(step(p), 1)), "less than 1"),
    (
        lambda: modified_flow_symbolic(lambda p, step, probe: p + probe(p)),
        "expected every move to contain a step",
    ),
    (lambda: modified_flow_symbolic("adamw"), "gd, nstep, sgd, heavy_ball, nesterov"),
    (lambda: modified_flow_symbolic("heavy_ball", momentum=1), "expected 0 <= momentum < 1"),
]

ROOMS = {
    "top": TOP, "problem": PROBLEM, "penalty": PENALTY, "diagnostics and advice": DIAGNOSTICS, "studies": STUDIES,
    "theory": THEORY,
}  # fmt: skip


@pytest.mark.parametrize(
    ("call", "words"),
    [pytest.param(*row, id=f"{room}: {row[1]}") for room, rows in ROOMS.items() for row in rows],
)
def test_the_sentence_says_what_would_be_right(call: Callable[[], object], words: str) -> None:
    with pytest.raises(tacit.InputError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
