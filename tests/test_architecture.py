"""docs/architecture.md shows every file and folder of the package, at the layer that the import test enforces."""

from __future__ import annotations

import re
from pathlib import Path

from test_layers import LEVEL, ROOMS, SOURCE

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"


def drawn_layers() -> dict[str, int]:
    rows = [line.split("|")[1:4] for line in PAGE.read_text().splitlines() if re.match(r"\| \d", line)]
    return {name.strip(" `/").removesuffix(".py"): int(level) for level, cell, _ in rows for name in cell.split(",")}


def test_the_picture_has_the_layers_that_are_enforced() -> None:
    assert drawn_layers() == {name: LEVEL[name] for name in drawn_layers()}


def test_everything_in_the_package_is_in_the_picture() -> None:
    entries = {path.name.removesuffix(".py") for path in SOURCE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert entries - {"__init__", "__pycache__", "__main__"} <= set(drawn_layers())


def test_the_picture_shows_nothing_that_does_not_exist() -> None:
    missing = [name for name in drawn_layers() if not any((SOURCE / f"{name}{end}").exists() for end in ("", ".py"))]
    assert missing == []


def test_the_picture_shows_the_rooms_of_studies_in_their_order_with_every_file() -> None:
    rows = re.findall(r"^\| `studies/(\w*)/?` \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert [room for room, _ in rows] == [*ROOMS, ""]
    for room, text in rows:
        files = {path.stem for path in (SOURCE / "studies" / room).glob("*.py")} - {"__init__"}
        assert files - set(re.findall(r"`(\w+)`", text)) == set(), f"the page lacks files of studies/{room}"
