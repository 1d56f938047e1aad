"""`Study`: a question, its fixed values and its grid, read from a TOML file, expanded into runs."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from tacit._util.errors import InputError
from tacit._util.own_code import source_hashes
from tacit._util.parsing import MEGABYTE, read_bounded
from tacit.studies.describe.error_messages import error_message, shorten
from tacit.studies.describe.figure_options import check_figures
from tacit.studies.describe.grid import Table, expand
from tacit.studies.describe.overrides import override
from tacit.studies.describe.spec import NAME, NAME_IN_WORDS, RunSpec, digest, own_names

SCHEMA = 1
MOST_BYTES = MEGABYTE  # of a study file


class Claim(BaseModel):
    """What the paper says, and where."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    figure: str
    sentence: str


class Summary(BaseModel):
    """How runs that differ only in their seed are drawn: the mean of the best `best` of `of` runs, or of all."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    score: Literal["best_test_accuracy", "final_test_accuracy"] = "best_test_accuracy"
    best: Annotated[int, Field(ge=1)] | None = None
    of: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _both_or_neither(self) -> Summary:
        if (self.best is None) != (self.of is None) or (self.best or 0) > (self.of or 0):
            raise ValueError(
                f"summary.best is {self.best} and summary.of is {self.of}; expected both with best ≤ of, or neither"
            )
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
    keep_weights: bool = False  # whether the final parameters of each run are stored; no part of a run's identity

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

    @model_serializer(mode="wrap")
    def _without_default(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """`keep_weights` came after the first studies were stored: at its default it is left out."""
        return {key: value for key, value in handler(self).items() if key != "keep_weights" or value}

    @cached_property
    def runs(self) -> tuple[RunSpec, ...]:
        return tuple(expand(self.fixed, self.grid, where=self.name))

    @cached_property
    def hash(self) -> str:
        """Identity of the training work: the runs alone, so a new question or figure trains nothing again."""
        return digest([SCHEMA, sorted(run.hash for run in self.runs)])


def load_study(source: str | Path | Study, *, overrides: Sequence[str] = ()) -> Study:
    """The study in a TOML file, with `key=value` overrides, or one sentence that says what is wrong with it.

    An override replaces the key everywhere: one value becomes fixed, a list (`a,b,c` or `0:3`, which is 0,1,2)
    becomes part of every grid. `summary.best=3` changes the summary, and `keep_weights=true` that key of the study.
    """
    if isinstance(source, Study) and not overrides:
        return source  # it was validated when it was made
    if isinstance(source, Study):
        raw, where = source.model_dump(), source.name
    else:
        path = Path(source)
        raw, where = _read_toml(path), path.name
    if overrides:
        raw = override(raw, overrides, top=Study.model_fields, summary=Summary.model_fields)
    return parse_study(_with_own_code(raw), where=where)


def _with_own_code(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The table with the hashes of the user's own modules as they are now: they are part of each run's identity."""
    fixed, grid = raw.get("fixed", {}), raw.get("grid", [])
    tables = [table for table in (fixed, *(grid if isinstance(grid, list) else [grid])) if isinstance(table, Mapping)]
    names = [name for table in tables for name in own_names(table)]
    return {**raw, "fixed": {**fixed, "own_code": source_hashes(names)}} if names else raw


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
        raise InputError(error_message(error, where=where, known=_known_beside(error, known))) from None
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
        return tomllib.loads(text)
    except FileNotFoundError:
        raise InputError(
            f"there is no study file {path}; expected a TOML file, or a name of `tacit studies list`."
        ) from None
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
