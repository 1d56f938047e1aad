"""Functions of the user's own: found by file, from two places only, hashed, and refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tacit._util.errors import InputError
from tacit._util.own_code import call, call_for, check_unchanged, import_function, import_object, source_hashes


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tmp_path


def write(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_module_of_the_current_folder_and_one_inside_a_package_are_imported(folder: Path) -> None:
    write(folder, "own_plain_module.py", "def f(): return 7\n")
    write(folder, "own_package/__init__.py", "")
    write(folder, "own_package/inner.py", "def f(): return 8\n")
    assert (import_function("own_plain_module:f")(), import_function("own_package.inner:f")()) == (7, 8)


def test_pythonpath_is_the_second_place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder / "lib", "own_listed_module.py", "def f(): return 9\n")
    with pytest.raises(InputError, match=r"no own_listed_module\.py in the current folder or on PYTHONPATH"):
        import_function("own_listed_module:f")
    monkeypatch.setenv("PYTHONPATH", str(folder / "lib"))
    assert import_function("own_listed_module:f")() == 9


def test_installed_modules_are_not_own_code(folder: Path) -> None:
    with pytest.raises(InputError, match="own code is imported from there only"):
        import_function("os:getcwd")


def test_a_file_that_hides_an_installed_module_is_refused(folder: Path) -> None:
    write(folder, "json.py", "def dumps(): return 0\n")
    with pytest.raises(InputError, match=r"Python already has a module json from .*; rename json\.py"):
        import_function("json:dumps")


@pytest.mark.parametrize("name", ["own_module", "own_module:", ":f", "own_module:f:g", "own module:f"])
def test_what_is_no_module_and_function_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(InputError, match="names no function of your own; expected module:function"):
        import_function(name)


def test_an_object_may_be_imported_and_what_a_function_returns_is_checked(folder: Path) -> None:
    write(folder, "own_object_module.py", "value = 3\ndef f(): return value\n")
    assert import_object("own_object_module:value") == 3
    assert call_for("own_object_module:f", int, "a number") == 3
    with pytest.raises(InputError, match="own_object_module:f returned a int; expected some text"):
        call_for("own_object_module:f", str, "some text")


def test_a_changed_file_is_noticed(folder: Path) -> None:
    write(folder, "own_changing_module.py", "def f(): return 1\n")
    hashes = source_hashes(["own_changing_module:f"])
    check_unchanged(hashes)
    write(folder, "own_changing_module.py", "def f(): return 2\n")
    with pytest.raises(InputError, match="has changed since the study was read"):
        check_unchanged(hashes)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("def g(): pass\n", "has no function f"),
        ("f = 3\n", "is a int; expected a function"),
        ("raise KeyError('x')\n", "cannot be imported: KeyError"),
        ("def f(): raise RuntimeError('no')\n", "raised RuntimeError: no"),
    ],
)
def test_what_goes_wrong_inside_is_one_sentence(folder: Path, text: str, sentence: str) -> None:
    name = f"own_bad_module_{abs(hash(text)) % 10**8}"
    write(folder, f"{name}.py", text)
    with pytest.raises(InputError, match=sentence):
        call(f"{name}:f")
