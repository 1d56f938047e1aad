"""studies/NAME.json: a study as a view on a folder of results, and how its unfinished runs are packed into fleets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacit._util.errors import InputError, TacitError
from tacit._util.parsing import MEGABYTE, parse_json
from tacit.studies.describe.spec import digest
from tacit.studies.describe.study import Study, parse_study
from tacit.studies.store.rows import json_file, read_or_damage
from tacit.studies.train.packing import Fleet

SCHEMA = 2
MOST_STUDY_BYTES = 4 * MEGABYTE


def encode_study(study: Study, fleets: Sequence[Fleet] | None = None) -> bytes:
    """The bytes of studies/NAME.json; without `fleets` there is no packing in it, as in packed folders."""
    content = {"schema": SCHEMA, "hash": study.hash, "study": study.model_dump()}
    if fleets is None:
        return json_file(content)
    listed = [" ".join(run.hash for run in fleet.runs) for fleet in fleets]
    return json_file({**content, "fleets": listed, "fleets_sha256": digest(listed)})


def read_study(path: Path) -> Study:
    """The validated study of studies/NAME.json."""
    remedy = f"remove {path.name} and run the study file again: finished runs are kept"
    content = read_or_damage(path, most=MOST_STUDY_BYTES)
    if content is None:
        raise TacitError(f"there is no {path}; expected a folder made by `tacit run`.")
    try:
        stored: Any = parse_json(content) if isinstance(content, bytes) else None
        _refuse_newer(stored, path)
        study, hash = parse_study(stored["study"], where=str(path)), stored["hash"]
    except InputError as error:
        raise TacitError(f"{str(error).rstrip('.')}; {remedy}.") from None
    except (ValueError, KeyError, TypeError):
        raise TacitError(f"{path} is damaged; {remedy}.") from None
    if hash != study.hash:
        raise TacitError(f"{path} does not match its hash; {remedy}.")
    return study


def read_packing(path: Path, study: Study) -> list[Fleet]:
    """The fleets that studies/NAME.json lists, as far as they are runs of `study`; none where it is damaged."""
    content = read_or_damage(path, most=MOST_STUDY_BYTES)
    try:
        stored = parse_json(content) if isinstance(content, bytes) else {}
        _refuse_newer(stored, path)
        listed = stored["fleets"]
        if not isinstance(listed, list) or digest(listed) != stored["fleets_sha256"]:
            return []
    except (ValueError, KeyError, TypeError):
        return []
    runs = {run.hash: run for run in study.runs}
    split = [each.split() for each in listed if isinstance(each, str)]
    known = [each for each in split if each and len(each) == len(runs.keys() & each)]
    return [Fleet(tuple(runs[hash] for hash in each)) for each in known]


def _refuse_newer(stored: Any, path: Path) -> None:
    schema = stored.get("schema") if isinstance(stored, dict) else None
    if isinstance(schema, int) and schema > SCHEMA:
        raise TacitError(f"{path} has schema {schema}; this tacit reads schema {SCHEMA}: upgrade tacit.")
