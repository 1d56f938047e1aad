"""Whether a process still trains in a folder, and the sentence that says so. No lock is taken: reading stops nobody."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tacit._counted import counted
from tacit.studies.cost import in_words
from tacit.studies.describe.library import library_folder, study_names
from tacit.studies.describe.study import Study, load_study
from tacit.studies.store.lock import Holder

# Workers store a checkpoint every ten seconds; a process of another machine that writes nothing for so long may be
# gone.
SILENT_SECONDS = 180.0


@dataclass(frozen=True)
class Driver:
    """`state` is alive, silent (a process of another machine that writes nothing any more) or gone."""

    state: str
    holder: Holder | None

    def text(self, *, path: Path, left: int, unfinished: Sequence[Study]) -> str:
        """What a reader has to know: who trains here, or how to go on."""
        who = f"process {self.holder.process}" if self.holder else "no process"
        who += f" on {self.holder.machine}" if self.holder and self.holder.machine else ""
        if self.state == "alive":
            return f"{who} trains here"
        if not left:
            return f"all runs are finished: `tacit report {shlex.quote(str(path))}` writes the report"
        resume = f"{counted(left, 'run')} {'remains' if left == 1 else 'remain'}: {resume_command(path, unfinished)}"
        if self.state == "silent":
            return f"{who} has written nothing for more than {in_words(SILENT_SECONDS)}; if it is gone, {resume}"
        return f"no driver is alive, {resume}"


def find_driver(holder: Holder | None, *, silent_seconds: float) -> Driver:
    """The driver that a lock file names; `silent_seconds` is how long nothing has been written to the folder."""
    if holder is None:
        return Driver("gone", None)
    lives = holder.lives
    if lives is None:
        lives = silent_seconds <= SILENT_SECONDS
        return Driver("alive" if lives else "silent", holder)
    return Driver("alive" if lives else "gone", holder)


def resume_command(path: Path, unfinished: Sequence[Study]) -> str:
    """The command that trains what is left, as far as the folder tells: it does not hold the name of a study file."""
    into = shlex.quote(str(path))
    names = [_library_name(study) for study in unfinished]
    if len(names) == 1 and names[0]:
        return f"`tacit run {names[0]} --into {into}` resumes"
    if names and all(names):
        return f"the same `tacit reproduce … --into {into}` resumes"
    return f"the same `tacit run … --into {into}` resumes"


def _library_name(study: Study) -> str:
    """The name of the study file of tacit that has the same runs; empty when none has."""
    for name in study_names():
        if name.rsplit("/", 1)[-1] == study.name and load_study(library_folder() / f"{name}.toml").hash == study.hash:
            return name
    return ""
