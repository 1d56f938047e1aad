"""Operations of a run are counted right: against counts made by hand."""

from __future__ import annotations

import pytest

from tacit.studies.cost import Cost, cost, memory, operations
from tacit.studies.describe.spec import RunSpec, make_run
from tacit.studies.describe.study import parse_study
from tacit.studies.train.packing import pack

# 40-3-10 on MNIST-1D: 150 multiply-adds forward, of which training does three times as many per example.
TINY = {"learning_rate": 0.1, "width": 3, "depth": 1, "train_size": 64, "batch_size": 16, "epochs": 2, "evaluations": 1}
SEEN = 2 * 150 * (64 + 1000)  # one evaluation: the training set and the test set, forward
AT_THE_END = 2 * 150 * 3 * 64  # C_reg: a gradient of every minibatch of an epoch


def tiny(**changes: object) -> RunSpec:
    return make_run({**TINY, **changes})


@pytest.mark.parametrize(
    "changes,trained",
    [
        ({}, 2 * 64),
        ({"strength": 0.1}, 2 * 2 * 64),  # six products for three in every linear layer
        ({"strength": 0.1, "micro_batch_size": 4, "sampled": 1}, (1 + 2 / 4) * 2 * 64),  # on 4 of 16 rows
        ({"relative": 0.1, "penalty_until": 0.5}, (2 + 1) / 2 * 2 * 64),
        ({"sam_radius": 0.1}, 2 * 2 * 64),
        ({"sam_radius": 0.1, "sam_rows": 4}, (1 + 1 / 4) * 2 * 64),
        ({"inner_steps": 4}, 4 * 2 * 64),  # every minibatch four times
    ],
)
def test_training_is_three_forward_passes_per_example_and_update(changes: dict[str, object], trained: int) -> None:
    assert operations(tiny(**changes)) == 2 * 150 * 3 * trained + SEEN + AT_THE_END


def test_a_smaller_test_set_costs_less() -> None:
    assert operations(tiny()) - operations(tiny(test_size=100)) == 2 * 150 * 900


def test_the_exact_penalty_triples_the_training_of_a_wide_resnet() -> None:
    image = {"dataset": "cifar10", "model": "wide_resnet", "depth": 10, "width": 1, "evaluations": 1}
    plain, penalised = (
        operations(make_run({**TINY, **image, "strength": strength, "epochs": 100})) for strength in (0.0, 0.1)
    )
    # Multiply-adds of WRN-10-1 by hand, pixels x products per pixel: the stem and three blocks, then the head.
    by_hand = 1024 * (432 + 4608) + 256 * (4608 + 9216 + 512) + 64 * (18432 + 36864 + 2048) + 640
    assert penalised - plain == 2 * 100 * 2 * 64 * 3 * by_hand


def test_a_run_that_is_listed_twice_costs_once() -> None:
    assert cost([tiny(), tiny(), tiny(seed=1)]) == Cost(2, 2 * 8, 2 * operations(tiny()))


def test_the_least_memory_of_a_fleet_is_its_parameters_gradients_and_activations() -> None:
    raw = {"name": "s", "fixed": {"epochs": 1, "learning_rate": 1, "width": 2, "depth": 1, "batch_size": 4}}
    (fleet,) = pack(parse_study({**raw, "grid": {"seed": [0, 1, 2]}}).runs)
    parameters = (40 + 1) * 2 + (2 + 1) * 10
    assert memory(fleet) == 4 * 3 * (2 * parameters + 4 * (40 + 2 + 10))
