"""Ten thousand hostile inputs, seeded, over every parser: each ends in a value or in a refusal, never in a crash.

Byte mutations test the first line (not UTF-8, not JSON, lengths beyond the file). Where a checksum guards a file, the
values inside it are mutated too and sealed with a right checksum, as an attacker would.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import tarfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mutations import bytes_mutated, value_mutated

from tacit._errors import TacitError
from tacit.studies.data import cache, cifar10, fashion_mnist
from tacit.studies.data.facts import Data
from tacit.studies.data.streams import Content, UnreadableError, read_content
from tacit.studies.describe.study import load_study, parse_study
from tacit.studies.execute import wire
from tacit.studies.store.folder import ResultsFolder, read_rows
from tacit.studies.store.rows import Damage, encode_packed, read_packed
from tacit.studies.store.status import folder_status
from tacit.studies.store.study_file import read_study
from tacit.studies.train import checkpoint
from tacit.studies.train.packing import pack
from tacit.studies.train.training import Training

REFUSALS = (TacitError, UnreadableError)  # DamagedCheckpointError is a TacitError; Damage is a value
TOML = """
name = "s"
question = "Ist λ = ε?"
claim = {figure = "1b", sentence = "It rises."}
[fixed]
train_size = 64
batch_size = 16
width = 4
depth = 1
epochs = 2
evaluations = 2
[[grid]]
learning_rate = ["2^-4", 0.1]
seeds = "0:2"
[[grid]]
bare_learning_rate = [0.05]
inner_steps = [2]
[summary]
best = 1
of = 2
[figures]
1b = {}
1a = {strength = "2^-3"}
4a = {epochs = 2}
mine = {x = "learning_rate", y = "best_test_accuracy", curve = "seed", title = "one"}
"""
OVERRIDES = (
    "seeds=0:3", "learning_rate=0.1,0.2", "learning_rate=2^-5,2^-3", "epochs=3", "summary.best=1", "strength=[0, 0.1]",
    "order=fixed", "bare_learning_rate=0.25", "updates=8", "width=8", 'schedule="paper_decay"', "weight_decay=1e-4",
)  # fmt: skip
STUDY = parse_study(tomllib.loads(TOML))
FLEET = pack(STUDY.runs)[0]
Parser = Callable[[Any], object]
MANY = 0.2  # of mutants must be refused, or mutation is too gentle to test anything


@pytest.fixture
def folder(tmp_path: Path, data: Data) -> ResultsFolder:
    """A study folder with a finished fleet and one under way."""
    store = ResultsFolder(tmp_path / "study")
    with store.locked():
        store.open_for(STUDY)
        for fleet in pack(STUDY.runs):
            training = Training(fleet, data)
            training.advance()
            store.write_rows(fleet.id, training.rows(), meta={"seconds": 1.0, "fleet": fleet.id})
            store.write_checkpoint(fleet.id, half_way(data))
    return store


def half_way(data: Data) -> bytes:
    training = Training(FLEET, data)
    training.advance(until=4)
    return training.checkpoint()


def fuzz(parse: Parser, inputs: Iterator[Any], *, times: int, good: Any) -> float:
    """The share refused: the good input must be accepted, and each of `times` mutants accepted or refused."""
    parse(good)
    refused = longest = 0
    for number in range(times):
        given = next(inputs)
        try:
            found = parse(given)
        except REFUSALS as error:
            refused, longest = refused + 1, max(longest, len(str(error)))
        except Exception as error:
            raise AssertionError(f"input {number}, {given!r:.300}: {error!r:.300}") from error
        else:
            refused += isinstance(found, Damage) or found is None
    assert longest < 2000  # a refusal does not repeat its input
    return refused / times


def mutants(good: list[bytes], seed: int) -> Iterator[bytes]:
    draws = random.Random(seed)
    while True:
        yield bytes_mutated(good, draws)


def value_mutants(good: Any, seed: int) -> Iterator[Any]:
    draws = random.Random(seed)
    while True:
        yield value_mutated(good, draws)


def written(path: Path, parse: Callable[[Path], object]) -> Parser:
    def through_a_file(content: bytes) -> object:
        path.write_bytes(content)
        return parse(path)

    return through_a_file


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()  # Python's own NaN and Infinity pass, as in many a writer


def as_lines(value: Any) -> bytes:
    return b"\n".join(map(as_json, value if isinstance(value, list) else [value]))


# -- study files ------------------------------------------------------------------------------------------------------
def test_study_files_are_read_or_refused(tmp_path: Path) -> None:
    parse = written(tmp_path / "s.toml", load_study)
    assert fuzz(parse, mutants([TOML.encode()], seed=1), times=2000, good=TOML.encode()) >= MANY


def test_tables_of_study_files_are_read_or_refused() -> None:
    table = tomllib.loads(TOML)
    assert fuzz(parse_study, value_mutants(table, seed=2), times=1000, good=table) >= MANY


def test_overrides_are_read_or_refused() -> None:
    def parse(content: bytes) -> object:
        return load_study(STUDY, overrides=[content.decode(errors="surrogateescape")])  # as the system gives arguments

    good = [text.encode() for text in OVERRIDES]
    assert fuzz(parse, mutants(good, seed=3), times=1000, good=good[0]) >= MANY


def test_options_of_figures_are_read_or_refused() -> None:
    table = tomllib.loads(TOML)

    def parse(figures: Any) -> object:
        return parse_study({**table, "figures": figures})

    assert fuzz(parse, value_mutants(table["figures"], seed=4), times=500, good=table["figures"]) >= MANY


# -- study folders ----------------------------------------------------------------------------------------------------
def test_study_json_is_read_or_refused(folder: ResultsFolder) -> None:
    path = folder.study_path(STUDY.name)
    good = path.read_bytes()
    parse = written(path, lambda _: (folder.unfinished(STUDY), read_study(path)))
    assert fuzz(parse, mutants([good], seed=5), times=500, good=good) >= MANY


def test_values_in_study_json_are_read_or_refused(folder: ResultsFolder) -> None:
    path = folder.study_path(STUDY.name)
    good = json.loads(path.read_bytes())
    parse = written(path, lambda _: (folder.unfinished(STUDY), read_study(path)))
    assert fuzz(lambda value: parse(as_json(value)), value_mutants(good, seed=6), times=500, good=good) >= MANY


def test_rows_are_read_or_damage(folder: ResultsFolder) -> None:
    path = folder.rows_path(FLEET.id)
    good = path.read_bytes()

    def sealed(content: bytes) -> object:
        path.write_bytes(content)
        path.with_name("meta.json").write_text(json.dumps({"rows_sha256": hashlib.sha256(content).hexdigest()}))
        return folder.rows(FLEET.id)

    assert fuzz(sealed, mutants([good], seed=7), times=500, good=good) >= MANY
    rows = [json.loads(line) for line in good.splitlines()]
    assert fuzz(lambda value: sealed(as_lines(value)), value_mutants(rows, seed=8), times=500, good=rows) >= MANY


def test_packed_rows_are_read_or_damage(folder: ResultsFolder, tmp_path: Path) -> None:
    good = gzip.decompress(encode_packed(folder.rows(FLEET.id), [{"fleet": FLEET.id}]))
    path = tmp_path / "packed.jsonl.gz"

    def sealed(content: bytes) -> object:
        *lines, _ = content.splitlines(keepends=True) or [b""]
        seal = json.dumps({"sha256": hashlib.sha256(b"".join(lines)).hexdigest()}).encode()
        path.write_bytes(gzip.compress(b"".join(lines) + seal))
        return read_packed(path)

    assert fuzz(sealed, mutants([good], seed=17), times=300, good=good) >= MANY
    whole = gzip.compress(good)
    assert fuzz(written(path, read_packed), mutants([whole], seed=18), times=300, good=whole) >= MANY


def test_rows_that_are_read_can_be_reported(folder: ResultsFolder) -> None:
    """Damage is a sentence for whoever reads a whole folder: its status, its rows."""
    path = folder.rows_path(FLEET.id)
    good = path.read_bytes()

    def parse(content: bytes) -> object:
        path.write_bytes(content)
        str(folder_status(folder.path)[0])
        return read_rows(folder.path)

    assert fuzz(parse, mutants([good], seed=9), times=100, good=good) >= MANY


@pytest.mark.parametrize("name", ["meta.json", "failed.json"])
def test_small_files_beside_the_rows_are_read_or_nothing(name: str, folder: ResultsFolder) -> None:
    path = folder.fleet_folder(FLEET.id) / name
    good = as_json(
        {"error": "a\nb", "attempts": 3, "rows_sha256": "0" * 64, "seconds": 1.5, "versions": {"torch": "2"}}
    )
    folder.rows_path(FLEET.id).unlink()

    def parse(content: bytes) -> object:
        path.write_bytes(content)
        str(folder_status(folder.path)[0])
        return folder.meta(FLEET.id) if name == "meta.json" else folder.failure(FLEET.id).get("attempts")

    assert fuzz(parse, mutants([good], seed=10), times=100, good=good) >= MANY


# -- checkpoints and the wire -----------------------------------------------------------------------------------------
def test_checkpoints_are_read_or_refused(data: Data) -> None:
    good = half_way(data)

    def parse(content: bytes) -> object:
        checkpoint.peek(content)
        return checkpoint.decode(content)

    assert fuzz(parse, mutants([good], seed=11), times=1000, good=good) >= MANY


def test_checkpoints_with_a_right_checksum_are_restored_or_refused(data: Data) -> None:
    """A restored training is then trained to its rows: nothing that was accepted may break later."""
    good = half_way(data)
    arrays, state = checkpoint.decode(good)
    draws = random.Random(12)

    def parse(content: bytes) -> object:
        training = Training(FLEET, data)
        training.restore(content)
        training.advance()
        return training.rows()

    def sealed() -> Iterator[bytes]:
        while True:
            changed = dict(arrays)
            if draws.random() < 0.5:
                name = draws.choice(list(changed))
                array = changed.pop(name)
                kind = draws.randrange(5)
                if kind == 1:
                    changed[name] = array[..., :-1].copy()
                elif kind == 2:
                    changed[name] = array.astype(draws.choice(("float64", "int8", "float16", "bool", "uint64")))
                elif kind == 3:
                    changed["../../x"] = array
                elif kind == 4:
                    changed[name] = array.reshape(-1).copy()
            try:
                yield checkpoint.encode(changed, value_mutated(state, draws))
            except UnicodeEncodeError:  # half a surrogate pair cannot be encoded at all
                continue

    assert fuzz(parse, sealed(), times=400, good=good) >= MANY


def test_frames_of_the_wire_are_read_or_refused(data: Data) -> None:
    message = wire.Message("train", {"runs": [run.model_dump() for run in FLEET.runs]}, content=b"checkpoint")
    good = wire.encode(message)
    assert fuzz(wire.decode, mutants([good], seed=13), times=500, good=good) >= MANY


def test_cached_arrays_are_read_or_made_again(tmp_path: Path) -> None:
    few = Data(*[np.arange(4, dtype=dtype) for dtype in ("float32", "int64", "float32", "int64")])
    path = tmp_path / "few.safetensors"
    cache.write_arrays(path, few)
    good = path.read_bytes()
    assert fuzz(written(path, cache.read_arrays), mutants([good], seed=16), times=300, good=good) >= MANY


# -- published data files ---------------------------------------------------------------------------------------------
def test_idx_files_are_read_or_refused() -> None:
    good = bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in (2, 3, 4)) + bytes(24)
    assert fuzz(fashion_mnist.parse_idx, mutants([good], seed=17), times=500, good=good) >= MANY


def test_packed_files_are_read_or_refused(tmp_path: Path) -> None:
    inside = bytes(range(256)) * 40
    content = Content("x", len(inside), hashlib.sha256(inside).hexdigest())
    good = gzip.compress(inside, mtime=0)
    assert fuzz(
        written(tmp_path / "x.gz", lambda path: read_content(path, content, packed=True)),
        mutants([good], seed=18),
        times=300,
        good=good,
    )  # fmt: skip >= MANY


def archive(members: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in members.items():
            facts = tarfile.TarInfo(name)
            facts.size = len(content)
            tar.addfile(facts, io.BytesIO(content))
    return made.getvalue()


def test_archives_are_read_or_refused(tmp_path: Path) -> None:
    inside = bytes(700)
    contents = [Content(name, len(inside), hashlib.sha256(inside).hexdigest()) for name in ("a.bin", "b.bin")]
    good = archive({**{f"{cifar10.FOLDER}/{content.name}": inside for content in contents}, "../../x": b"1" * 100})
    read = written(tmp_path / "x.tar.gz", lambda path: list(cifar10.read_archive(path, contents)))
    assert (
        fuzz(
            lambda tar: read(gzip.compress(tar, 1)),
            mutants([good], seed=19),
            times=500,
            good=good,
        )
        >= MANY
    )


def test_records_of_images_are_read_or_refused() -> None:
    good = bytes(cifar10.RECORD)
    assert fuzz(cifar10.parse_records, mutants([good], seed=20), times=200, good=good) >= MANY
