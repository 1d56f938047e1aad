"""Damaged rows and states are refused or harmless, and JSON is only what can be computed with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from made_folders import finish, rows_of_fleet
from tacit._util import tensor_file
from tacit._util.parsing import parse_json, read_bounded
from tacit.studies.describe.study import parse_study
from tacit.studies.store.folder import ResultsFolder
from tacit.studies.store.rows import Damage, encode_packed, read_packed
from tacit.studies.train.packing import pack

STUDY = parse_study({"name": "s", "fixed": {"epochs": 2}, "grid": {"learning_rate": [0.1, 0.2]}})
FLEET = pack(STUDY.runs)[0]
ARRAYS = {"b": np.arange(6, dtype="float32").reshape(2, 3), "a": np.array(3), "none": np.zeros((0, 2))}
FACTS = {"position": 5, "history": [{"test_accuracy": [0.25, 1 / 3]}], "name": "λ"}
Spoil = tuple[str, float, bytes]
SPOILS = st.tuples(
    st.sampled_from(["replace", "insert", "cut"]), st.floats(0, 1, exclude_max=True), st.binary(max_size=9)
)


def spoiled(whole: bytes, how: Spoil) -> bytes:
    kind, where, noise = how
    at = int(where * len(whole))
    return whole[:at] + {"replace": noise + whole[at + len(noise) :], "insert": noise + whole[at:], "cut": b""}[kind]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # each example writes the files anew
@given(SPOILS)
def test_spoiled_rows_are_the_same_rows_or_damage(tmp_path: Path, how: Spoil) -> None:
    folder = ResultsFolder(tmp_path)
    finish(folder, FLEET)
    right = rows_of_fleet(folder, FLEET.id)
    packed = encode_packed(right, [{"fleet": FLEET.id}])
    for path in (folder.rows_path(FLEET.id), folder.rows_path(FLEET.id).with_name("meta.json")):
        whole = path.read_bytes()
        path.write_bytes(spoiled(whole, how))
        assert isinstance(rows_of_fleet(folder, FLEET.id), Damage) or rows_of_fleet(folder, FLEET.id) == right
        path.write_bytes(whole)
    (tmp_path / "packed").write_bytes(spoiled(packed, how))
    found = read_packed(tmp_path / "packed")
    assert isinstance(found, Damage) or found.rows == right


@given(SPOILS)
def test_a_spoiled_state_is_the_same_state_or_refused(how: Spoil) -> None:
    content = spoiled(tensor_file.encode(ARRAYS, FACTS), how)
    assert isinstance(tensor_file.peek(content), dict)
    try:
        arrays, facts = tensor_file.decode(content)
    except ValueError:
        return
    assert facts == FACTS
    assert {name: (array.dtype, array.tolist()) for name, array in arrays.items()} == {
        name: (array.dtype, array.tolist()) for name, array in ARRAYS.items()
    }


def test_equal_arrays_and_facts_have_equal_bytes_in_any_order() -> None:
    turned = tensor_file.encode(dict(reversed(ARRAYS.items())), dict(reversed(FACTS.items())))
    assert turned == tensor_file.encode(ARRAYS, FACTS)


@pytest.mark.parametrize(
    "content",
    [b"[NaN]", b'{"a": -Infinity}', b"[1e999]", b'{"a": 1, "a": 2}', b'"\xff"', b'{"a": 1}\0', b"", b"[" * 50_000],
)
def test_json_like_this_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError):
        parse_json(content)


def test_ordinary_json_is_read() -> None:
    value = {"a": [1, -2.5, None, True, "λ", "\U0001f600"], "b": {"c": [[]]}, "largest": 2**63 - 1}
    assert parse_json(json.dumps(value).encode()) == value
    assert parse_json(json.dumps(value, ensure_ascii=False).encode()) == value


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with open(tmp_path / "x", "wb") as handle:
        handle.truncate(2**40)
    with pytest.raises(ValueError, match="expected at most 100"):
        read_bounded(tmp_path / "x", most=100)
