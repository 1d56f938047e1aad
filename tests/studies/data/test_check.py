"""`tacit data verify`: right files are named as right, and a changed byte anywhere is found and named."""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

import pytest
from archives import CONTENTS, content, own_members, packed, published, tar

from tacit import cli
from tacit.studies.data.check import check_content, check_file, check_published, check_root, check_sums
from tacit.studies.data.published import ARCHIVE, PUBLISHED_DATASETS

ARCHIVED = packed(tar(own_members()), name="x")
IMAGES = packed(b"images" * 50, name="images")


def flipped(raw: bytes, at: int, bit: int = 1) -> bytes:
    return raw[:at] + bytes([raw[at] ^ bit]) + raw[at + 1 :]


@pytest.mark.parametrize("bit", [1, 128])
@pytest.mark.parametrize("raw", [ARCHIVED, IMAGES], ids=["archive", "single"])
def test_every_flipped_byte_of_a_published_file_is_found(raw: bytes, bit: int, tmp_path: Path) -> None:
    file = published(raw, CONTENTS if raw is ARCHIVED else (content("images", b"images" * 50),))
    path = tmp_path / "file.gz"
    path.write_bytes(raw)
    assert check_published(path, file).right
    for at in range(len(raw)):
        path.write_bytes(flipped(raw, at, bit))
        assert not check_published(path, file).right, f"byte {at} of {len(raw)}"


def test_every_shortened_published_file_is_found(tmp_path: Path) -> None:
    path, file = tmp_path / "file.gz", published(ARCHIVED, CONTENTS)
    for length in range(len(ARCHIVED)):
        path.write_bytes(ARCHIVED[:length])
        assert not check_published(path, file).right


def test_a_damaged_member_is_named(tmp_path: Path) -> None:
    members = own_members()
    members[1] = (members[1][0], flipped(members[1][1], 7))
    path = tmp_path / "file.gz"
    path.write_bytes(packed(tar(members)))
    assert "batch_2.bin" in check_published(path, published(ARCHIVED, CONTENTS)).words


def test_the_same_contents_in_another_wrapper_are_right(tmp_path: Path) -> None:
    path = tmp_path / "file.gz"
    path.write_bytes(packed(tar(own_members()), level=1))
    checked = check_published(path, published(ARCHIVED, CONTENTS))
    assert checked.right
    assert "packed in another way" in checked.words


def test_an_unpacked_file_is_checked_by_its_own_bytes(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    path.write_bytes(b"abc")
    assert check_content(path, content("batch", b"abc")).right
    assert not check_content(path, content("batch", b"abd")).right


def test_sums_that_disagree_with_a_file_are_found(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    right = f"{hashlib.sha256(b'abc').hexdigest()}  file\n"
    for line, expected in [
        (right, "agrees"),
        (flipped(right.encode(), 3).decode(), "another SHA-256 for file|line 1"),
        (right.replace("file", "fil"), "lists fil, which is not there"),
        ("nonsense\n", "line 1"),
    ]:
        (tmp_path / "SHA256SUMS").write_text(line)
        (checked,) = check_sums(tmp_path)
        assert checked.right == (expected == "agrees")
        assert any(part in checked.words for part in expected.split("|"))


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["tacit", "data", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_the_data_beside_the_checkout_is_right_file_by_file(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "verify", "--data-dir", str(data_dir)) == 0
    shown = capsys.readouterr().out
    for source in PUBLISHED_DATASETS.values():
        for file in source.files:
            (line,) = (line for line in shown.splitlines() if f"{file.name} " in line)
            assert line.startswith("right")
    assert "WRONG" not in shown


@pytest.fixture
def small_copy(data_dir: Path, tmp_path: Path) -> Path:
    """Fashion-MNIST, writable."""
    (tmp_path / "fashion-mnist").mkdir()
    for path in (data_dir / "fashion-mnist").iterdir():
        shutil.copyfile(path, tmp_path / "fashion-mnist" / path.name)
    return tmp_path


@pytest.mark.parametrize("number", range(4))
def test_a_flipped_byte_in_a_real_file_is_found(small_copy: Path, number: int) -> None:
    path = small_copy / "fashion-mnist" / PUBLISHED_DATASETS["fashion_mnist"].files[number].name
    whole = path.read_bytes()
    places = {"time in the header": 5, "name in the header": 12, "stored length": len(whole) - 1}
    for where, at in {**places, "checksum": len(whole) - 6, "middle": len(whole) // 2}.items():
        path.write_bytes(flipped(whole, at, 4))
        assert not check_file("fashion_mnist", path).right, where


def test_a_damaged_file_is_named_and_the_others_are_right(
    small_copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = small_copy / "fashion-mnist" / "train-labels-idx1-ubyte.gz"
    path.write_bytes(flipped(path.read_bytes(), 9000))
    assert run(monkeypatch, "verify", "fashion_mnist", "--data-dir", str(small_copy)) == 2
    shown = capsys.readouterr()
    assert f"1 file is not as published: {path}" in shown.err
    assert (shown.out.count("WRONG"), shown.out.count("right")) == (1, 3)


def test_a_missing_file_is_named(
    small_copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (small_copy / "fashion-mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    assert run(monkeypatch, "verify", "--data-dir", str(small_copy)) == 2
    assert "t10k-labels-idx1-ubyte.gz is missing" in capsys.readouterr().out


def test_an_empty_folder_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "verify", "--data-dir", str(tmp_path)) == 2
    assert "tacit data get fashion_mnist cifar10" in capsys.readouterr().err


@pytest.mark.slow
def test_a_flipped_byte_in_the_real_archive_is_found_and_its_member_named(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "cifar-10").mkdir()
    path = tmp_path / "cifar-10" / ARCHIVE
    shutil.copyfile(data_dir / "cifar-10" / ARCHIVE, path)
    size = path.stat().st_size
    for at, named in [
        (4, "wrapper"),
        (1000, "batch_1"),
        (size // 2, "batch_"),
        (size - 2000, "test_batch"),
        (size - 1, ""),
    ]:
        with open(path, "r+b") as handle:
            handle.seek(at)
            before = handle.read(1)
            handle.seek(at)
            handle.write(bytes([before[0] ^ 16]))
        (checked,) = check_root("cifar10", tmp_path)
        assert not checked.right
        assert named in checked.words
        with open(path, "r+b") as handle:
            handle.seek(at)
            handle.write(before)
    (checked,) = check_root("cifar10", tmp_path)
    assert checked.right
