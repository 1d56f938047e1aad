"""Without the frameworks: `import tacit` works and imports none of them; their adapters say what to install."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

from tacit._util.errors import TacitError
from tacit.integrations.frameworks import OLDEST, MissingFrameworkError, load, release

FRAMEWORKS = ("lightning", "pytorch_lightning", "transformers", "accelerate", "peft", "tensorboard", "wandb")


def test_importing_tacit_and_its_public_names_imports_no_framework() -> None:
    code = (
        "import sys, tacit, tacit.sinks; [getattr(tacit, name) for name in tacit.__all__];"
        f"print([name for name in {FRAMEWORKS!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", OLDEST)
def test_a_missing_framework_is_named_with_the_command_that_installs_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(MissingFrameworkError, match=f"^{name} is not installed; tacit.{name} needs version"):
        load(name)
    with pytest.raises(ImportError, match=rf"In a clone of tacit run: pip install '\.\[{name}\]'"):
        load(name)
    with pytest.raises(TacitError):
        load(name)


@pytest.mark.parametrize("name", OLDEST)
def test_an_old_framework_is_refused_with_both_versions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.9.5")
    with pytest.raises(MissingFrameworkError, match=rf"^{name} 1\.9\.5 is too old; .* needs version {OLDEST[name]}"):
        load(name)


def test_versions_are_compared_as_numbers() -> None:
    assert release("2.10") > release("2.9.1")
    assert release("2.6.0rc1") == (2, 6, 0)
    assert release("2.13.0+cpu") == (2, 13, 0)


@pytest.mark.parametrize("name", OLDEST)
def test_the_adapters_module_is_reached_as_an_attribute(name: str) -> None:
    import tacit

    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        with pytest.raises(MissingFrameworkError, match="is not installed"):
            getattr(tacit, name)
    else:
        assert getattr(tacit, name).__name__ == f"tacit.{name}"
