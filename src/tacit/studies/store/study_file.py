"""studies/NAME.json: a study as a view on a folder of results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tacit._errors import InputError, TacitError
from tacit._parsing import MEGABYTE, parse_json
from tacit.studies.describe.study import Study, parse_study
from tacit.studies.store.rows import read_or_damage

SCHEMA = 2  # of studies/NAME.json; 1 was study.json, one per folder
MOST_STUDY_BYTES = 4 * MEGABYTE


def read_study(path: Path) -> Study:
    """The validated study of studies/NAME.json, or of the study.json of an earlier version."""
    remedy = f"remove {path.name} and run the study file again: finished runs are kept"
    content = read_or_damage(path, most=MOST_STUDY_BYTES)
    if content is None:
        raise TacitError(f"there is no {path}; expected a folder made by `tacit run`.")
    try:
        stored: Any = parse_json(content) if isinstance(content, bytes) else None
        refuse_newer(stored, path)
        study, hash = parse_study(stored["study"], where=str(path)), stored["hash"]
    except InputError as error:
        raise TacitError(f"{str(error).rstrip('.')}; {remedy}.") from None
    except (ValueError, KeyError, TypeError):
        raise TacitError(f"{path} is damaged; {remedy}.") from None
    if hash != study.hash:
        raise TacitError(f"{path} does not match its hash; {remedy}.")
    return study


def refuse_newer(stored: Any, path: Path) -> None:
    schema = stored.get("schema") if isinstance(stored, dict) else None
    if isinstance(schema, int) and schema > SCHEMA:
        raise TacitError(f"{path} has schema {schema}; this tacit reads schema {SCHEMA}: upgrade tacit.")
