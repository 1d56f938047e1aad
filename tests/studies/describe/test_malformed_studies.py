"""Two hundred and more malformed study files: no traceback, one sentence each, and it names the key."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from typed_commands import Typed

INTEGERS = (
    "train_size", "width", "depth", "batch_size", "inner_steps", "epochs", "seed", "evaluations", "micro_batch_size",
    "sampled", "sam_rows",
)  # fmt: skip
NUMBERS = (
    "learning_rate",
    "strength",
    "weight_decay",
    "relative",
    "sam_radius",
    "label_noise",
    "label_smoothing",
    "penalty_until",
)
WORDS = ("dataset", "model", "method", "order", "schedule", "augmentation")
WRONG_INTEGERS = ['"many"', "2.5", "-3", "true", "[1, 2]", "{a = 1}", "1979-05-27", "99999999999999999999", "nan", '""']
WRONG_NUMBERS = ['"fast"', "-0.5", "nan", "inf", "-inf", "true", "[0.1]", '"2^"', '"2^-x"', '"2^99999"', '"3^-2"', "{}"]
WRONG_WORDS = ['"imaginary"', "3", "true", '""', '["mlp"]', "{}", '"SHUFFLED"']
Case = tuple[str, str, str]  # what it is, the file, what the message must name


def study(fixed: dict[str, str], grid: dict[str, str], *, head: str = 'name = "s"', tail: str = "") -> str:
    lines = [head]
    for name, table in (("fixed", fixed), ("grid", grid)):
        lines += [f"[{name}]", *[f"{key} = {value}" for key, value in table.items()]]
    return "\n".join([*lines, tail, ""])


def good() -> tuple[dict[str, str], dict[str, str]]:
    return {"epochs": "2", "width": "8"}, {"learning_rate": '["2^-4", 0.1]', "seed": "[0, 1]"}


def wrong_values() -> list[Case]:
    cases = []
    for keys, values in ((INTEGERS, WRONG_INTEGERS), (NUMBERS, WRONG_NUMBERS), (WORDS, WRONG_WORDS)):
        for key in keys:
            for value in values:
                fixed, grid = good()
                grid.pop(key, None)
                fixed[key] = value
                cases.append((f"{key} = {value}", study(fixed, grid), key))
                if not value.startswith("["):
                    fixed.pop(key)
                    if key == "epochs":
                        continue
                    cases.append((f"grid {key} = [{value}]", study(fixed, {**grid, key: f"[{value}]"}), key))
    return cases


def misspelt_keys() -> list[Case]:
    cases = []
    for key in (*INTEGERS, *NUMBERS, *WORDS):
        fixed, grid = good()
        typo = key[:2] + key[3:] + "x"
        cases.append((f"fixed {typo}", study({**fixed, typo: "1"}, grid), typo))
        cases.append((f"grid {typo}", study(fixed, {**grid, typo: "[1]"}), typo))
    return cases


def wrong_shapes() -> list[Case]:
    fixed, grid = good()
    whole = study(fixed, grid)
    return [
        ("grid value is not a list", study(fixed, {**grid, "seed": "3"}), "seed"),
        ("grid value is an empty list", study(fixed, {**grid, "seed": "[]"}), "seed"),
        ("grid range is empty", study(fixed, {**grid, "seed": '"3:3"'}), "seed"),
        ("grid range is nonsense", study(fixed, {**grid, "seed": '"a:b"'}), "seed"),
        ("in grid and fixed", study({**fixed, "seed": "1"}, grid), "seed"),
        ("both lengths", study({**fixed, "updates": "10"}, grid), "updates"),
        ("no length", study({"width": "8"}, grid), "epochs"),
        ("both rates", study({**fixed, "bare_learning_rate": "0.1"}, grid), "bare_learning_rate"),
        ("no rate", study(fixed, {"seed": "[0]"}), "learning_rate"),
        ("unequal batches", study({**fixed, "batch_size": "33"}, grid), "batch_size"),
        ("batch above train_size", study({**fixed, "batch_size": "64", "train_size": "32"}, grid), "batch_size"),
        ("more data than there is", study({**fixed, "train_size": "4032"}, grid), "train_size"),
        ("updates between minibatches", study({"updates": "31", "inner_steps": "2"}, grid), "updates"),
        ("too many evaluations", study({**fixed, "evaluations": "9999"}, grid), "evaluations"),
        ("grid too large", study(fixed, {**grid, "seed": '"0:90000"'}), "grid"),
        ("no name", study(fixed, grid, head=""), "name"),
        ("name with a slash", study(fixed, grid, head='name = "../s"'), "name"),
        ("name is a number", study(fixed, grid, head="name = 3"), "name"),
        ("unknown table", whole + "[extras]\nx = 1\n", "extras"),
        ("misspelt table", whole.replace("[fixed]", "[fixd]"), "fixd"),
        ("fixed is a number", 'name = "s"\nfixed = 3\n', "fixed"),
        ("grid is a number", 'name = "s"\ngrid = 3\n', "grid"),
        ("grid is a list of numbers", 'name = "s"\ngrid = [1, 2]\n', "grid"),
        ("summary is a list", whole + "[[summary]]\nbest = 1\n", "summary"),
        ("unknown score", whole + '[summary]\nscore = "luck"\n', "score"),
        ("best above of", whole + "[summary]\nbest = 5\nof = 3\n", "of"),
        ("best without of", whole + "[summary]\nbest = 9\n", "summary.of is None"),
        ("of without best", whole + "[summary]\nof = 3\n", "summary.best is None"),
        ("unknown option of a figure", whole + "[figures]\n1a = {strenght = 1}\n", "strenght"),
        ("own figure that is no place", whole + '[figures]\nmine = {figure = "mine"}\n', "figures.mine.figure"),
        ("option of a wrong type", whole + '[figures]\n4a = {epochs = "many"}\n', "figures.4a.epochs"),
        ("option that is no number", whole + "[figures]\n1a = {strength = true}\n", "figures.1a.strength"),
        ("unknown option of an own figure", whole + "[figures]\nmine = {colour = 1}\n", "colour"),
        ("unknown axis of an own figure", whole + '[figures]\nmine = {x = "luck"}\n', "figures.mine.x"),
        ("unknown score of an own figure", whole + "[figures]\nmine = {y = 3}\n", "figures.mine.y"),
        ("unknown curve of an own figure", whole + '[figures]\nmine = {curve = "luck"}\n', "figures.mine.curve"),
        ("figure id with a slash", whole + '[figures]\n"../mine" = {}\n', "figures"),
        ("figure id with a line end", whole + '[figures]\n"a\\n" = {}\n', "figures"),
        ("figure is a number", whole + "[figures]\nmine = 3\n", "figures.mine"),
        ("name with a line end", study(fixed, grid, head='name = "s\\n"'), "name"),
        ("seed beside seeds", study(fixed, {**grid, "seeds": '"0:3"'}), "seeds"),
        ("seed beside seeds, fixed", study({**fixed, "seed": "1", "seeds": "2"}, {"learning_rate": "[1]"}), "seeds"),
        ("range in fixed", study({**fixed, "seed": '"0:3"'}, {"learning_rate": "[1]"}), "[grid]"),
        ("rate below float32", study(fixed, {"learning_rate": '["2^-200"]'}), "learning_rate"),
        ("rate above float32", study(fixed, {"learning_rate": '["2^500"]'}), "learning_rate"),
        ("strength below float32", study({**fixed, "strength": "1e-60"}, grid), "strength"),
        ("decay above float32", study({**fixed, "weight_decay": "1e39"}, grid), "weight_decay"),
        ("bare rate below float32", study({**fixed, "inner_steps": "32"}, {"learning_rate": '["2^-125"]'}), "bare_"),
        ("best is zero", whole + "[summary]\nbest = 0\n", "best"),
        ("unknown summary key", whole + "[summary]\nworst = 1\n", "worst"),
        ("claim without sentence", study(fixed, grid, head='name = "s"\nclaim = {figure = "1b"}'), "sentence"),
        ("claim is a word", study(fixed, grid, head='name = "s"\nclaim = "it rises"'), "claim"),
        ("question is a list", study(fixed, grid, head='name = "s"\nquestion = ["why"]'), "question"),
        ("figures is a word", study(fixed, grid, head='name = "s"\nfigures = "1b"'), "figures"),
        ("newer schema", study(fixed, grid, head='name = "s"\nschema = 2'), "schema"),
        ("schema is a word", study(fixed, grid, head='name = "s"\nschema = "new"'), "schema"),
        ("duplicate key", whole.replace("epochs = 2", "epochs = 2\nepochs = 3"), "epochs"),
        ("empty file", "", "name"),
    ]


def broken_toml() -> list[Case]:
    """Characters removed or inserted at random places: where the result is not TOML, the line is named."""
    import tomllib

    draws, cases = random.Random(0), []
    fixed, grid = good()
    text = study(fixed, grid, tail="[summary]\nbest = 1\nof = 2")
    while len(cases) < 30:
        at = draws.randrange(len(text))
        broken = text[:at] + draws.choice(["", "[", '"', "=", "\n", "#\x00", "]]"]) + text[at + 1 :]
        try:
            tomllib.loads(broken)
        except tomllib.TOMLDecodeError:
            cases.append((f"broken at {at}", broken, "TOML"))
    return cases


CASES = [*wrong_values(), *misspelt_keys(), *wrong_shapes(), *broken_toml()]


@pytest.fixture
def refusal_of(tmp_path: Path, typed: Typed) -> Callable[..., str]:
    """What `tacit run study.toml … --dry-run` says of a file with some text."""

    def refusal(text: str, *more: str) -> str:
        (tmp_path / "study.toml").write_text(text)
        return typed("run", tmp_path / "study.toml", *more, "--dry-run").refusal()

    return refusal


def test_there_are_two_hundred_malformed_files() -> None:
    assert len({text for _, text, _ in CASES}) >= 200


def test_the_file_that_they_are_made_from_is_well_formed(tmp_path: Path) -> None:
    from tacit.studies.describe.study import load_study

    (tmp_path / "good.toml").write_text(study(*good()))
    assert len(load_study(tmp_path / "good.toml").runs) == 4


@pytest.mark.parametrize("text,named", [(text, named) for _, text, named in CASES], ids=[what for what, _, _ in CASES])
def test_a_malformed_file_is_one_sentence_that_names_the_key(
    text: str, named: str, refusal_of: Callable[..., str]
) -> None:
    message = refusal_of(text)
    assert named in message.removeprefix("tacit: study.toml")
    assert not any(words in message for words in ("Input should", "String should", "instance of", "validation error"))


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir(), lambda path: path.write_bytes(b"\xff")])
def test_a_file_that_cannot_be_read_is_one_sentence(make: Any, tmp_path: Path, typed: Typed) -> None:
    path = tmp_path / "study.toml"
    make(path)
    assert "study.toml" in typed("run", path, "--dry-run").refusal()


def test_an_unknown_dataset_is_named_beside_the_known_ones(refusal_of: Callable[..., str]) -> None:
    message = refusal_of(study(*good()), "dataset=imagenet")
    assert "imagenet" in message
    assert "mnist1d" in message


def test_an_unknown_key_is_told_its_likely_name(refusal_of: Callable[..., str]) -> None:
    fixed, grid = good()
    assert "did you mean weight_decay?" in refusal_of(study({**fixed, "wieght_decay": "0.1"}, grid))


@pytest.mark.parametrize("key", NUMBERS)
def test_a_message_about_a_number_shows_how_powers_of_two_are_written(key: str, refusal_of: Callable[..., str]) -> None:
    assert '"2^-9"' in refusal_of(study(*good()), f"{key}=2**-9")


def test_a_message_about_the_method_says_why_there_is_only_one(refusal_of: Callable[..., str]) -> None:
    message = refusal_of(study(*good()), "method=double_backward")
    assert "'gram'" in message
    assert "fleets" in message


OVERRIDES = [
    ("question=hi", "change it in the file"),
    ("figures=1b", "change it in the file"),
    ("seeds=0:0", "seeds is the range 0:0, which is empty"),
    ("seeds=3:1", "empty"),
    ("seeds=[]", "at least one value"),
    ("summary.best=9", "summary.of is None"),
]


@pytest.mark.parametrize("text,words", OVERRIDES)
def test_a_wrong_override_says_what_would_be_right(text: str, words: str, refusal_of: Callable[..., str]) -> None:
    assert words in refusal_of(study(*good()), text)
