"""CIFAR-10's archive: read member by member, each checked, nothing extracted, nothing trusted."""

from __future__ import annotations

import contextlib
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from archives import CONTENTS, MEMBERS, own_members, packed, tar
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tacit.studies.data import cifar10
from tacit.studies.data import files as data_files
from tacit.studies.data.cifar10 import FOLDER, RECORD, parse_records, read_archive
from tacit.studies.data.facts import DATASETS
from tacit.studies.data.load import load
from tacit.studies.data.streams import UnreadableError

WHOLE = tar(own_members())
Read = Callable[[bytes], dict[str, bytes]]


@pytest.fixture
def read(tmp_path: Path) -> Callable[[bytes], dict[str, bytes]]:
    """The members of a tar archive, packed with gzip, by name."""

    def members(raw: bytes) -> dict[str, bytes]:
        (tmp_path / "archive").write_bytes(packed(raw, level=1))
        return {found.name: batch for found, batch in read_archive(tmp_path / "archive", CONTENTS)}

    return members


def test_the_archive_gives_the_published_sets(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TACIT_DATA", str(data_dir))
    data, facts = load("cifar10"), DATASETS["cifar10"]
    assert data.train_inputs.shape == (facts.train_size, *facts.shape)
    assert data.test_inputs.shape == (facts.test_size, *facts.shape)
    assert (data.train_inputs.dtype, data.train_targets.dtype) == (np.uint8, np.int64)
    assert np.bincount(data.train_targets).tolist() == [5000] * 10
    assert np.bincount(data.test_targets).tolist() == [1000] * 10
    for channel in range(3):
        counts = np.bincount(data.train_inputs[:, channel].ravel(), minlength=256).astype("float64")
        values = np.arange(256) / 255
        mean = (counts * values).sum() / counts.sum()
        deviation = np.sqrt((counts * (values - mean) ** 2).sum() / counts.sum())
        assert facts.mean[channel] == pytest.approx(mean, abs=5e-9)  # written with eight decimals
        assert facts.deviation[channel] == pytest.approx(deviation, abs=5e-9)


@pytest.mark.parametrize("name", ["fashion_mnist", "cifar10"])
def test_the_second_load_reads_no_published_file(data_dir: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("TACIT_DATA", str(data_dir))
    load(name)
    monkeypatch.setattr(data_files, "read", lambda _: pytest.fail("read again"))
    load(name)


def test_members_come_whole_in_any_order_beside_others(read: Read) -> None:
    others = [(f"{FOLDER}/batches.meta.txt", b"names"), (f"{FOLDER}/readme.html", bytes(700))]
    assert read(tar([*reversed(own_members()), *others])) == MEMBERS


def test_names_count_only_exactly_and_are_never_paths(read: Read) -> None:
    evil = [
        (f"../{FOLDER}/batch_1.bin", b"x"),
        ("/etc/passwd", b"x"),
        (f"./{FOLDER}/batch_1.bin", b"x"),
        (f"{FOLDER}/../batch_1.bin", b"x"),
    ]
    assert read(tar([*evil, *own_members()])) == MEMBERS
    with pytest.raises(UnreadableError, match=r"lacks batch_1\.bin"):
        read(tar([*evil, *own_members()[1:]]))


def test_the_first_of_two_members_of_a_name_is_read(read: Read) -> None:
    name, raw = own_members()[1]
    assert read(tar([*own_members(), (name, raw[:-1] + b"x")])) == MEMBERS
    with pytest.raises(UnreadableError, match=r"a changed batch_2\.bin"):
        read(tar([(name, raw[:-1] + b"x"), *own_members()]))


def test_a_changed_member_is_named(read: Read) -> None:
    name, raw = own_members()[1]
    with pytest.raises(UnreadableError, match=r"a changed batch_2\.bin"):
        read(tar([own_members()[0], (name, b"\xff" + raw[1:]), own_members()[2]]))


def test_a_member_of_another_size_or_kind_is_named(read: Read) -> None:
    name, raw = own_members()[0]
    with pytest.raises(UnreadableError, match=r"more than the 201 bytes of batch_1\.bin"):
        read(tar([(name, raw + b"x")]))
    with pytest.raises(UnreadableError, match=r"batch_1\.bin as something else than a file"):
        read(tar([(name, b"")], kinds={name: tarfile.SYMTYPE}))


def test_a_header_that_promises_terabytes_is_refused_in_little_memory(read: Read) -> None:
    facts = tarfile.TarInfo("huge")
    facts.size = 1 << 40
    header = facts.tobuf(format=tarfile.GNU_FORMAT)
    octal = tarfile.TarInfo("large")
    octal.size = (1 << 33) - 1
    tracemalloc.start()
    try:
        for raw in (header, octal.tobuf(format=tarfile.USTAR_FORMAT)):
            with pytest.raises(UnreadableError):
                read(raw + bytes(1 << 16))
        assert (
            tracemalloc.get_traced_memory()[1] < 2 << 20
        )  # gzip and tarfile have buffers; the member has 8 GB or more
    finally:
        tracemalloc.stop()


def test_many_small_members_are_refused_at_last(read: Read) -> None:
    with pytest.raises(UnreadableError, match="unpacks to more than"):
        read(tar([("x", bytes(60_000))] * 40))


def test_a_flipped_byte_of_a_tar_is_found_or_is_not_part_of_a_batch(read: Read) -> None:
    for at in (*range(0, 6 * 512, 7), *range(6 * 512, len(WHOLE), 997)):
        raw = WHOLE[:at] + bytes([WHOLE[at] ^ 1]) + WHOLE[at + 1 :]
        try:
            assert read(raw) == MEMBERS  # padding, and the zeros behind
        except UnreadableError:
            continue
        assert not any(start <= at < start + 512 for start in range(0, 6 * 512, 1024)), "a header has its own checksum"


def test_every_tar_that_lacks_a_byte_of_a_batch_is_refused(read: Read) -> None:
    end = 5 * 512 + len(MEMBERS["batch_3.bin"])  # three headers and batches of one block each
    for length in range(0, end, 3):
        with pytest.raises(UnreadableError):
            read(WHOLE[:length])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # each example writes the file anew
@given(st.binary(max_size=600), st.integers(0, len(WHOLE)))
def test_no_bytes_make_the_reader_fail_in_another_way(read: Read, noise: bytes, at: int) -> None:
    for raw in (noise, WHOLE[:at] + noise + WHOLE[at + len(noise) :]):
        with contextlib.suppress(UnreadableError):
            assert read(raw) == MEMBERS


def test_a_class_number_above_nine_is_refused() -> None:
    assert parse_records(bytes([9]) + bytes(RECORD - 1))[1].tolist() == [9]
    with pytest.raises(UnreadableError, match="class number 10"):
        parse_records(bytes([10]) + bytes(RECORD - 1))
    with pytest.raises(UnreadableError, match="no multiple"):
        parse_records(bytes(RECORD + 1))


def test_colours_and_rows_are_where_the_format_puts_them() -> None:
    raw = bytearray(RECORD)
    raw[1 + 2 * 1024 + 5 * 32 + 7] = 200  # blue, row 5, column 7
    images, _ = parse_records(bytes(raw))
    assert images[0, 2, 5, 7] == 200
    assert int(images.sum()) == 200


def test_batches_land_in_their_own_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar10, "BATCH_SIZE", 2 * RECORD)
    batches = [(each, (bytes([number]) + bytes(RECORD - 1)) * 2) for number, each in enumerate(cifar10.CONTENTS)]
    data = cifar10.decode(reversed(batches))
    assert data.train_targets.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert data.test_targets.tolist() == [5, 5]
