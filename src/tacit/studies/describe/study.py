"""`Study`: a question, its fixed values and its grid, read from a TOML file, expanded into runs."""

from __future__ import annotations

import itertools
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from tacit._errors import InputError
from tacit._parsing import MEGABYTE, parse_toml, read_bounded
from tacit.studies.describe.figure_options import check_figures
from tacit.studies.describe.spec import (
    NAME,
    NAME_IN_WORDS,
    RUN_KEYS,
    RunSpec,
    digest,
    make_run,
    number,
    sentence,
    shorten,
    unknown_key,
)

SCHEMA = 1
MOST_BYTES = MEGABYTE  # of a study file
MOST_RUNS = 100_000  # a typing error in a grid should be a sentence, not a full memory
RANGE = re.compile(r"\s*(\d{1,18}):(\d{1,18})\s*")
# A run gives one of each pair; overriding one takes the other away.
EXCLUSIVE = [{"epochs", "updates"}, {"learning_rate", "bare_learning_rate"}]

Table = dict[str, Any]


class Claim(BaseModel):
    """What the paper says, and where."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    figure: str
    sentence: str


class Summary(BaseModel):
    """How runs that differ only in their seed become one number: the mean of the best `best` of `of` runs."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    score: Literal["best_test_accuracy", "final_test_accuracy"] = "best_test_accuracy"
    best: Annotated[int, Field(ge=1)] = 5
    of: Annotated[int, Field(ge=1)] = 7

    @model_validator(mode="after")  # of the whole table: either key may come from its default
    def _not_fewer_than_best(self) -> Summary:
        if self.of < self.best:
            raise ValueError(f"summary.best is {self.best} and summary.of is {self.of}; expected best ≤ of")
        return self


class Study(BaseModel):
    """A validated study. `runs` are its runs, in the order of the file, each once."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    schema_version: Literal[1] = 1
    name: str
    question: str = ""
    claim: Claim | None = None
    fixed: Table = {}
    grid: list[Table] = []
    summary: Summary = Summary()
    figures: dict[str, Table] = {}

    @field_validator("name")
    @classmethod
    def _is_a_file_name(cls, name: str) -> str:
        if not NAME.fullmatch(name):
            raise ValueError(f"name is {shorten(name)}; expected {NAME_IN_WORDS}")
        return name

    @field_validator("figures")
    @classmethod
    def _are_understood(cls, figures: dict[str, Table]) -> dict[str, Table]:
        check_figures(figures)
        return figures

    @cached_property
    def runs(self) -> tuple[RunSpec, ...]:
        return tuple(_expand(self.fixed, self.grid, where=self.name))

    @cached_property
    def hash(self) -> str:
        """Identity of the training work: the runs alone, so a new question or figure trains nothing again."""
        return digest([SCHEMA, sorted(run.hash for run in self.runs)])


def load_study(source: str | Path | Study, *, overrides: Sequence[str] = ()) -> Study:
    """The study in a TOML file, with `key=value` overrides, or one sentence that says what is wrong with it.

    An override replaces the key everywhere: one value becomes fixed, a list (`a,b,c` or `0:3`, which is 0,1,2)
    becomes part of every grid. `summary.best=3` reaches into the summary.
    """
    if isinstance(source, Study):
        raw, where = source.model_dump(), source.name
    else:
        path = Path(source)
        raw, where = _read_toml(path), path.name
    return parse_study(_override(raw, overrides) if overrides else raw, where=where)


def parse_study(raw: Mapping[str, Any], *, where: str = "study") -> Study:
    """The study of an already parsed TOML table; its runs are validated too."""
    if not isinstance(raw, Mapping):
        raise InputError(f"{where}: the study is {shorten(raw)}; expected a table.")
    given = dict(raw)
    version = given.pop("schema", given.pop("schema_version", SCHEMA))
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise InputError(f"{where}: schema is {shorten(version)}; expected the number {SCHEMA}.")
    if version > SCHEMA:
        raise InputError(
            f"{where}: schema {version} is newer than this tacit, which reads schema {SCHEMA}; upgrade tacit."
        )
    if isinstance(given.get("grid"), Mapping):
        given["grid"] = [given["grid"]]
    known = ["schema", *[key for key in Study.model_fields if key != "schema_version"]]
    try:
        study = Study.model_validate({**given, "schema_version": version})
    except ValidationError as error:
        raise InputError(sentence(error, where=where, known=_known_beside(error, known))) from None
    _ = study.runs  # expanding validates every run
    return study


def _known_beside(error: ValidationError, top: list[str]) -> list[str]:
    """The keys that would be right where the first problem is."""
    location = error.errors(include_url=False)[0]["loc"]
    tables: dict[str, type[BaseModel]] = {"claim": Claim, "summary": Summary}
    inside = tables.get(str(location[0])) if len(location) > 1 else None
    return list(inside.model_fields) if inside else top


def _read_toml(path: Path) -> dict[str, Any]:
    text = ""
    try:
        text = read_bounded(path, most=MOST_BYTES).decode("utf-8")
        return parse_toml(text)
    except FileNotFoundError:
        raise InputError(f"there is no study file {path}; expected a TOML file.") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder; expected a TOML file.") from None
    except UnicodeDecodeError:
        raise InputError(f"{path.name} is not UTF-8 text; expected a TOML file.") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path.name} is not valid TOML: {error}{_line_named_by(error, text)}.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from None
    except ValueError as error:
        raise InputError(f"{path.name} is refused: {error}; expected a TOML file with a study.") from None


def _line_named_by(error: tomllib.TOMLDecodeError, text: str) -> str:
    """The line that the parser stopped at, so that the message names its key."""
    found = re.search(r"at line (\d+)", str(error))
    lines = text.splitlines()
    return f": {shorten(lines[int(found[1]) - 1])}" if found and int(found[1]) <= len(lines) else ""


# -- expansion --------------------------------------------------------------------------------------------------------
def _expand(fixed: Table, grid: list[Table], *, where: str) -> list[RunSpec]:
    """The union of the products of all grid tables over the fixed values; duplicates are dropped by hash."""
    _one_of_seed_and_seeds(fixed, where=f"{where} [fixed]")
    base = {_run_key(key, f"{where} [fixed]"): value for key, value in fixed.items()}
    tables = [_axes(table, base, where=f"{where} [grid]") for table in grid] or [{}]
    size = sum(math.prod(len(values) for values in axes.values()) for axes in tables)
    if size > MOST_RUNS:
        raise InputError(f"{where}: the grid has {size} runs; expected at most {MOST_RUNS}.")
    runs: dict[str, RunSpec] = {}
    for axes in tables:
        for values in itertools.product(*axes.values()):
            run = make_run({**base, **dict(zip(axes, values, strict=True))}, where=where)
            runs.setdefault(run.hash, run)
    return list(runs.values())


def _axes(table: Table, base: Table, *, where: str) -> dict[str, list[Any]]:
    _one_of_seed_and_seeds(table, where=where)
    axes: dict[str, list[Any]] = {}
    for given, values in table.items():
        key = _run_key(given, where)
        listed = _as_range(values, given, where=where) if isinstance(values, str) else values
        if not isinstance(listed, list) or not listed:
            raise InputError(f"{where}: {given} is {shorten(values)}; expected a list with at least one value.")
        if key in base:
            raise InputError(f"{where}: {key} is both fixed and in the grid; expected it in one of them.")
        axes[key] = listed
    return axes


def _one_of_seed_and_seeds(table: Table, *, where: str) -> None:
    if {"seed", "seeds"} <= table.keys():
        raise InputError(f"{where}: seed and seeds are both given, and mean the same; expected one of them.")


def _run_key(key: str, where: str) -> str:
    key = "seed" if key == "seeds" else key
    if key not in RUN_KEYS:
        raise InputError(unknown_key(where, key, RUN_KEYS))
    return key


def _as_range(text: str, key: str, *, where: str) -> list[int] | None:
    """`"0:3"` is [0, 1, 2]; None when the text is no range."""
    found = RANGE.fullmatch(text)
    if found is None:
        return None
    first, end = int(found[1]), int(found[2])
    if not 0 < end - first <= MOST_RUNS:
        size = "empty" if end <= first else f"longer than {MOST_RUNS}"
        raise InputError(f"{where}: {key} is the range {text.strip()}, which is {size}; 0:3 means 0, 1, 2.")
    return list(range(first, end))


# -- overrides --------------------------------------------------------------------------------------------------------
def _override(raw: Mapping[str, Any], overrides: Sequence[str]) -> Table:
    study = {**raw, "fixed": dict(_table(raw, "fixed")), "summary": dict(_table(raw, "summary"))}
    grid = raw.get("grid", [])
    if not isinstance(grid, list | Mapping) or any(not isinstance(table, Mapping) for table in grid_tables(grid)):
        raise InputError("grid is not a table; expected [grid] or [[grid]].")
    study["grid"] = [dict(table) for table in grid_tables(grid)]
    for text in overrides:
        given, equals, value = text.partition("=")
        if not equals or not given.strip() or not value.strip():
            raise InputError(f"the override {shorten(text)} is not key=value; write for example seeds=0:3.")
        _apply(study, given.strip(), value.strip())
    return study


def grid_tables(grid: Any) -> list[Any]:
    return [grid] if isinstance(grid, Mapping) else list(grid)


def _table(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = raw.get(key, {})
    if not isinstance(found, Mapping):
        raise InputError(f"{key} is {shorten(found)}; expected a table [{key}].")
    return found


def _apply(study: Table, given: str, text: str) -> None:
    if given.startswith("summary."):
        study["summary"][given.removeprefix("summary.")] = _value(text)
        return
    if given in Study.model_fields or given == "schema":
        raise InputError(
            f"override: {given} is not a value of a run; change it in the file. Overrides take "
            f"{', '.join(RUN_KEYS)}, {', '.join(f'summary.{name}' for name in Summary.model_fields)}."
        )
    key = _run_key(given, "override")
    gone = {key} | next((pair for pair in EXCLUSIVE if key in pair), set()) | ({"seeds"} if key == "seed" else set())
    for table in (study["fixed"], *study["grid"]):
        for name in gone & table.keys():
            del table[name]
    listed = _listed(text, given)
    if listed is None:
        study["fixed"][key] = _value(text)
    else:
        study["grid"] = study["grid"] or [{}]
        for table in study["grid"]:
            table[key] = listed


def _listed(text: str, key: str) -> list[Any] | None:
    """The values of `a,b`, `[a,b]` or `0:3`; None for a single value."""
    bracketed = text.startswith("[") and text.endswith("]")
    inside = text[1:-1].strip().removesuffix(",") if bracketed else text
    if bracketed and not inside:
        raise InputError(f"override: {key} is {shorten(text)}; expected at least one value.")
    if bracketed or "," in inside:
        return [_value(part) for part in inside.split(",")]
    return _as_range(inside, key, where="override")


def _value(text: str) -> Any:
    """The value as TOML would read it; a bare word is a string."""
    text = text.strip()
    try:
        return parse_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return number(text)
    except ValueError as error:
        raise InputError(f"the override value {shorten(text)} is refused: {error}.") from None
