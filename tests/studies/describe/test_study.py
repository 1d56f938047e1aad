"""Study files: what is read, what is expanded, what an override does, and what identifies a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tacit import InputError
from tacit.studies.describe.spec import LATER, RunSpec, make_run
from tacit.studies.describe.study import Study, load_study, parse_study
from tacit.studies.train.packing import CAPS, finishing_time, pack, shape

ROOT = Path(__file__).parents[3]
TINY = """
name = "tiny"
question = "Does it rise?"
claim = {figure = "1b", sentence = "It rises."}
[fixed]
epochs = 4
[grid]
learning_rate = ["2^-5", "2^-4", 0.25]
seeds = "0:3"
[summary]
best = 2
of = 3
[figures.1b]
[figures.mine]
x = "learning_rate"
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


def test_a_grid_is_the_product_of_its_lists(tiny: Path) -> None:
    runs = load_study(tiny).runs
    assert [(run.learning_rate, run.seed) for run in runs] == [
        (rate, seed) for rate in (2**-5, 2**-4, 0.25) for seed in (0, 1, 2)
    ]


def test_powers_of_two_are_exact() -> None:
    assert make_run({"learning_rate": "2^-9", "epochs": 1}).learning_rate == 2.0**-9
    assert make_run({"learning_rate": " 2^3 ", "epochs": 1}).learning_rate == 8.0


def test_several_grids_are_a_union_without_duplicates() -> None:
    grids = [{"learning_rate": [0.1, 0.2], "seed": [0, 1]}, {"learning_rate": ["2^-3", 0.2], "seed": [1]}]
    study = parse_study({"name": "union", "fixed": {"epochs": 1}, "grid": grids})
    assert len(study.runs) == 5


def test_the_bare_rate_times_the_inner_steps_is_the_learning_rate() -> None:
    grid = {"bare_learning_rate": [0.1], "inner_steps": [1, 4]}
    runs = parse_study({"name": "n", "fixed": {"epochs": 1}, "grid": grid}).runs
    assert [run.learning_rate for run in runs] == [0.1, 0.4]
    assert [run.bare_learning_rate for run in runs] == [0.1, 0.1]


def test_updates_count_inner_steps() -> None:
    run = make_run({"learning_rate": 0.1, "inner_steps": 4, "updates": 1000})
    assert (run.minibatches, run.total_updates) == (250, 1000)
    assert make_run({"learning_rate": 0.1, "inner_steps": 4, "epochs": 2}).total_updates == 2 * 125 * 4


def test_the_hash_is_the_same_however_the_number_is_written() -> None:
    first = make_run({"learning_rate": "2^0", "strength": 0, "epochs": 1})
    assert first.hash == make_run({"strength": 0.0, "epochs": 1, "learning_rate": 1}).hash
    assert len(first.hash) == 16


def test_minus_zero_is_zero() -> None:
    assert make_run({"learning_rate": 1, "strength": -0.0, "epochs": 1}).hash == (
        make_run({"learning_rate": 1, "strength": 0.0, "epochs": 1}).hash
    )


def test_the_ends_of_float32_are_inside() -> None:
    for text in ("2^-126", "2^127"):
        assert make_run({"learning_rate": text, "epochs": 1}).learning_rate > 0


# Frozen: a change of this value disowns every stored result, so it must be on purpose.
def test_the_hash_of_a_known_run_has_not_changed() -> None:
    assert make_run({"learning_rate": 0.125, "epochs": 3, "seed": 7}).hash == "eec114e40a34898a"


def test_the_hash_of_a_run_of_version_0_1_has_not_changed() -> None:
    spec = {
        "dataset": "mnist1d", "train_size": 2048, "model": "mlp", "width": 64, "depth": 3, "batch_size": 16,
        "epochs": 200, "evaluations": 20, "order": "mirrored", "learning_rate": 2**-7, "seed": 10,
    }  # fmt: skip
    assert make_run(spec).hash == "c1cf3840245f9c30"


def test_a_later_key_at_its_default_leaves_the_hash_alone() -> None:
    base = {"learning_rate": 0.125, "epochs": 3, "seed": 7}
    assert make_run({**base, **LATER}).hash == make_run(base).hash


OWN_BASE: dict[str, Any] = {"model": "mymodule:make", "learning_rate": 0.1, "epochs": 4}
OWN: dict[str, Any] = {
    "model_arguments": {"channels": 2}, "optimizer": "momentum", "momentum": 0.5, "own_code": {"mymodule:make": "a"}
}  # fmt: skip


REGULARIZERS: dict[str, Any] = {
    "label_smoothing": 0.1, "label_noise": 0.3, "micro_batch_size": 16, "sampled": 2, "relative": 0.4,
    "penalty_until": 0.5, "sam_radius": 0.1, "sam_rows": 4,
}  # fmt: skip
NEEDED: dict[str, dict[str, Any]] = {"sampled": {"micro_batch_size": 8}, "sam_rows": {"sam_radius": 0.1}}


@pytest.mark.parametrize("key", [key for key in RunSpec.model_fields if key != "method"])  # it has one value so far
def test_every_key_that_can_change_changes_the_hash(key: str) -> None:
    base = {"dataset": "cifar10", "learning_rate": 0.1, "epochs": 4}
    other = {
        "train_size": 1600, "width": 32, "depth": 2, "learning_rate": 0.2, "strength": 0.1, "batch_size": 16,
        "inner_steps": 2, "order": "fixed", "schedule": "paper_decay", "weight_decay": 0.1, "epochs": 5,
        "seed": 1, "evaluations": 3, "dataset": "fashion_mnist", "augmentation": "crop_flip", "image_size": 16,
        "test_size": 100, "weight_decay_penalized": False, "precision": "bfloat16", **REGULARIZERS,
    }  # fmt: skip
    changed = {**base, **({key: other[key]} if key in other else {})}
    if key == "updates":
        changed = {"dataset": "cifar10", "learning_rate": 0.1, "updates": 500}
    elif key == "model":
        base, changed = {**base, "depth": 10, "width": 1}, {**base, "depth": 10, "width": 1, "model": "wide_resnet"}
    elif key == "augmentation_amount":
        base = {"dataset": "mnist1d", "learning_rate": 0.1, "epochs": 4, "augmentation": "shift"}
        changed = {**base, "augmentation_amount": 3}
    elif key in NEEDED:
        base = {**base, **NEEDED[key]}
        changed = {**base, key: other[key]}
    elif key in OWN:
        base = {**OWN_BASE, "optimizer": "nesterov"} if key == "momentum" else OWN_BASE
        changed = {**base, key: OWN[key]}
    assert make_run(changed).hash != make_run(base).hash


def test_the_usual_amount_of_an_augmentation_has_one_spelling() -> None:
    base = {"learning_rate": 0.1, "epochs": 4, "augmentation": "shift"}
    assert make_run({**base, "augmentation_amount": 2}).hash == make_run(base).hash


def test_the_whole_test_set_and_the_published_size_have_one_spelling() -> None:
    base = {"dataset": "cifar10", "learning_rate": 0.1, "epochs": 4}
    assert make_run({**base, "image_size": 32, "test_size": 10_000}).hash == make_run(base).hash


IMAGES: list[tuple[dict[str, Any], str]] = [
    ({"model": "wide_resnet", "depth": 10}, "model is wide_resnet and dataset is mnist1d, which has no images"),
    ({"augmentation": "crop_flip"}, "augmentation is crop_flip and dataset is mnist1d, which has no images"),
    ({"image_size": 8}, "image_size is 8 and dataset is mnist1d, which has no images"),
    ({"dataset": "cifar10", "augmentation": "shift"}, "augmentation is shift and dataset is cifar10, whose examples"),
    ({"augmentation_amount": 1}, "augmentation_amount is 1.0 and augmentation is none"),
    ({"augmentation_amount": 2}, "augmentation_amount is 2.0 and augmentation is none"),
    ({"augmentation": "shift", "augmentation_amount": 1.5}, "augmentation_amount is 1.5; a shift needs a whole number"),
    ({"augmentation": "shift", "augmentation_amount": 20}, "a shift needs a whole number of samples, at most 19"),
    ({"dataset": "cifar10", "image_size": 15}, "image_size is 15; images of cifar10 can be averaged to 4, 8, 16, 32"),
    ({"dataset": "fashion_mnist", "image_size": 56}, "can be averaged to 4, 7, 14, 28"),
    ({"dataset": "cifar10", "model": "wide_resnet", "depth": 12}, "depth is 12; a wide_resnet needs depth 6n \\+ 4"),
    ({"dataset": "cifar10", "model": "wide_resnet", "depth": 4}, "depth is 4"),
    ({"dataset": "cifar10", "model": "wide_resnet", "depth": 10, "width": 4096}, "width is 4096"),
    ({"dataset": "cifar10", "test_size": 10_001}, "test_size is 10001; cifar10 has 10000 test examples"),
    ({"dataset": "cifar10", "train_size": 64_000}, "cifar10 has 50000 training examples"),
    ({"weight_decay_penalized": "no"}, "weight_decay_penalized is 'no'; expected true or false"),
    ({"sampled": 1}, "sampled is 1 and micro_batch_size is not given; expected both"),
    ({"micro_batch_size": 5}, "micro_batch_size is 5; expected one that divides batch_size 32, or sampled"),
    ({"micro_batch_size": 8, "sampled": 5}, "5 micro-batches of 8 are more than batch_size 32"),
    ({"sam_radius": 0.1, "strength": 0.1}, "sam_radius is 0.1 and strength is 0.1; a run has SAM or a penalty"),
    ({"sam_radius": 0.1, "relative": 0.4}, "sam_radius is 0.1 and relative is 0.4"),
    ({"sam_rows": 4}, "sam_rows is 4 and sam_radius is 0; expected a radius greater than 0"),
    ({"sam_rows": 64, "sam_radius": 0.1}, "sam_rows is 64; expected at most batch_size 32"),
    ({"strength": 0.1, "relative": 0.4}, "strength is 0.1 and relative is 0.4; expected one of them"),
    ({"label_noise": 1.0}, "label_noise is 1.0; expected a number less than 1"),
    ({"label_smoothing": -0.1}, "label_smoothing is -0.1; expected at least 0"),
    ({"penalty_until": 0.0}, "penalty_until is 0.0; expected a number greater than 0"),
    ({"precision": "float16"}, "precision is 'float16'; expected 'float32' or 'bfloat16'"),
]


@pytest.mark.parametrize("values,words", IMAGES, ids=[str(sorted(values)) for values, _ in IMAGES])
def test_what_does_not_go_together_is_said_in_a_sentence(values: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        make_run({"learning_rate": 0.1, "epochs": 1, **values})


def test_the_whole_minibatch_has_one_spelling() -> None:
    base = {"learning_rate": 0.1, "epochs": 1, "sam_radius": 0.1}
    assert make_run({**base, "sam_rows": 32}).hash == make_run(base).hash


def test_an_override_replaces_the_key_everywhere(tiny: Path) -> None:
    study = load_study(tiny, overrides=["seeds=5", "learning_rate=0.1,2^-1", "width=16", "summary.best=1"])
    assert [(run.learning_rate, run.seed, run.width) for run in study.runs] == [(0.1, 5, 16), (0.5, 5, 16)]
    assert study.summary.best == 1


def test_an_override_of_updates_takes_epochs_away(tiny: Path) -> None:
    study = load_study(tiny, overrides=["updates=500", "bare_learning_rate=0.1"])
    assert {(run.epochs, run.updates, run.learning_rate) for run in study.runs} == {(None, 500, 0.1)}


@pytest.mark.parametrize("text", ["[0.1,2^-1]", "[0.1, 0.5]", '["2^-1", 0.1,]', "0.1,0.5"])
def test_a_list_override_may_have_brackets(text: str, tiny: Path) -> None:
    study = load_study(tiny, overrides=[f"learning_rate={text}"])
    assert {run.learning_rate for run in study.runs} == {0.1, 0.5}


def test_a_list_of_one_is_a_grid_of_one(tiny: Path) -> None:
    assert {run.seed for run in load_study(tiny, overrides=["seeds=[4]"]).runs} == {4}


def test_a_range_override_leaves_its_end_out(tiny: Path) -> None:
    assert {run.seed for run in load_study(tiny, overrides=["seeds=2:5"]).runs} == {2, 3, 4}


@pytest.mark.parametrize("text,named", [("sedes=1", "seed"), ("width", "key=value"), ("width=", "key=value"),
                                        ("width=wide", "width"), ("summary.worst=1", "worst")])  # fmt: skip
def test_a_wrong_override_is_a_sentence(text: str, named: str, tiny: Path) -> None:
    with pytest.raises(InputError, match=named):
        load_study(tiny, overrides=[text])


def test_a_study_survives_its_own_json(tiny: Path) -> None:
    study = load_study(tiny)
    again = Study.model_validate_json(study.model_dump_json())
    assert again == study
    assert again.hash == study.hash


def test_the_study_hash_is_of_its_runs_alone(tiny: Path) -> None:
    text = TINY.replace("Does it rise?", "Does it fall?").replace("best = 2", "best = 1")
    tiny.with_name("other.toml").write_text(text)
    assert load_study(tiny.with_name("other.toml")).hash == load_study(tiny).hash
    assert load_study(tiny, overrides=["width=16"]).hash != load_study(tiny).hash


# -- packing --------------------------------------------------------------------------------------------------------
def many(**axes: list[object]) -> list[RunSpec]:
    return list(parse_study({"name": "many", "fixed": {"epochs": 2}, "grid": axes}).runs)


RUNS = many(learning_rate=[0.1, 0.2, 0.3], strength=[0.0, 0.1, 0.2], batch_size=[16, 32], seed=list(range(7)))


def test_every_run_is_in_exactly_one_fleet() -> None:
    packed = [run.hash for fleet in pack(RUNS) for run in fleet.runs]
    assert sorted(packed) == sorted(run.hash for run in RUNS)


def test_runs_of_a_fleet_have_one_shape_and_fit_the_cap() -> None:
    for fleet in pack(RUNS):
        assert len({shape(run) for run in fleet.runs}) == 1
        assert len(fleet.runs) <= max(CAPS)


def test_packing_does_not_depend_on_the_order_of_the_file() -> None:
    assert [fleet.id for fleet in pack(RUNS)] == [fleet.id for fleet in pack(RUNS[::-1])]


def test_two_workers_finish_together() -> None:
    costs = [fleet.cost for fleet in pack(RUNS)]
    assert finishing_time(costs, 2) < 1.1 * sum(costs) / 2  # a tenth of waiting at most


# -- figures --------------------------------------------------------------------------------------------------------
def test_the_table_of_options_is_what_the_figures_read() -> None:
    from tacit.report import catalogue
    from tacit.report.own_figure import OPTIONS, SCORES
    from tacit.report.rows import VARIABLES
    from tacit.studies.describe import figure_options

    read = {key for figure in catalogue().values() for key in figure.options}
    assert set(figure_options.OPTIONS) == read | set(OPTIONS) | {"figure"}
    assert set(figure_options.AXES) == set(VARIABLES)
    assert set(figure_options.SCORES) == set(SCORES)


def test_known_options_of_figures_are_accepted() -> None:
    figures = {
        "1a": {"strength": "2^-1"}, "4b": {"updates": 24576}, "7a": {"epochs": 48}, "orders": {},
        "mine": {"x": "temperature", "y": "final_test_accuracy", "curve": "batch_size", "title": "ε/B"},
    }  # fmt: skip
    study = parse_study({"name": "s", "fixed": {"learning_rate": 0.1, "epochs": 1}, "figures": figures})
    assert study.figures == figures


ALONE: list[tuple[dict[str, Any], bool]] = [
    ({"width": 64}, False),
    ({"dataset": "fashion_mnist", "width": 128}, False),
    ({"dataset": "fashion_mnist", "width": 256}, True),
    ({"dataset": "fashion_mnist", "width": 64, "precision": "bfloat16"}, True),
    ({"dataset": "cifar10", "model": "wide_resnet", "depth": 10, "width": 1}, True),
]


@pytest.mark.parametrize("values,alone", ALONE, ids=[str(values) for values, _ in ALONE])
def test_large_models_train_one_by_one_and_small_ones_together(values: dict[str, Any], alone: bool) -> None:
    runs = [make_run({"learning_rate": 0.1, "epochs": 1, "seed": seed, **values}) for seed in range(4)]
    assert sorted(len(fleet.runs) for fleet in pack(runs)) == ([1] * 4 if alone else [4])


@pytest.mark.parametrize("key", LATER)
def test_runs_that_differ_in_a_later_key_have_different_shapes(key: str) -> None:
    other: dict[str, Any] = {
        "image_size": 14,
        "test_size": 100,
        "weight_decay_penalized": False,
        "precision": "bfloat16",
        **REGULARIZERS,
    }
    base = {"dataset": "fashion_mnist", "learning_rate": 0.1, "epochs": 1, **NEEDED.get(key, {})}
    if key == "augmentation_amount":
        base, other[key] = {"learning_rate": 0.1, "epochs": 1, "augmentation": "shift"}, 3
    if key in OWN:
        base, other = {**OWN_BASE, **({"optimizer": "nesterov"} if key == "momentum" else {})}, OWN
    assert shape(make_run(base)) != shape(make_run({**base, key: other[key]}))
