"""Keeps the page's items up to date: one thread reads the folder, one judges the figures, while someone asks.

What reads and judges is imported by these threads: it takes half a second, in which the page is already there.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tacit._errors import InputError, TacitError
from tacit.watch.items import Items

if TYPE_CHECKING:
    from tacit.watch.scan import FolderScan

READ_SECONDS = 1.0  # between two readings of the folder
JUDGE_SECONDS = 2.0  # between two rounds of verdicts
AT_MOST = 0.25  # the share of one core that either thread may use: large folders are read less often
IDLE_SECONDS = 20.0  # without a question, nothing is read
FIRST_SECONDS = 15.0  # how long the first question waits for the first reading
LOG = logging.getLogger("tacit.watch")


class Observer:
    """Reads a folder of results, or those directly inside it. It writes nothing and takes no lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.items = Items()
        self._scans: dict[Path, FolderScan] = {}
        self._judged: dict[str, object] = {}  # by folder: what its verdicts rest on
        self._asked = threading.Event()
        self._asked_at = time.monotonic()  # read at once: the first page waits less
        self._first = threading.Event()  # the folder was read once
        self._changed = threading.Event()
        self._stopped = threading.Event()
        self._read_at = 0.0

    # -- questions ------------------------------------------------------------------------------------------------
    def answer(self, instance: str = "", version: int = 0) -> str:
        """What is new since `version`, as JSON. Starts the readers again when nobody has asked for a while."""
        self._asked_at = time.monotonic()
        self._asked.set()
        self._first.wait(FIRST_SECONDS)
        age = time.monotonic() - self._read_at if self._read_at else None
        facts = {
            "path": str(self.path),
            "now": round(time.time(), 1),
            "age": round(age, 1) if age is not None else None,
        }
        return f"{{{json.dumps(facts)[1:-1]},{self.items.since(instance, version)}}}"

    def start(self) -> None:
        """Start both threads; they end with the process, or at `stop`."""
        for loop in (self._read_loop, self._judge_loop):
            threading.Thread(target=loop, daemon=True, name=loop.__name__).start()

    def stop(self) -> None:
        self._stopped.set()
        self._asked.set()
        self._changed.set()

    # -- reading --------------------------------------------------------------------------------------------------
    def read(self) -> None:
        """Read the folder once."""
        problem = ""
        try:
            self._find_folders()
        except InputError:
            problem = (
                f"{self.path} holds no study yet; `tacit run … --into {self.path}` or `tacit reproduce` makes one."
            )
        except TacitError as error:  # a server that is away now: what was read before stays on the page
            problem = str(error)
        for scan in self._scans.values():
            try:
                changed = self.items.replace(scan.name, scan.items())
            except TacitError as error:
                problem, changed = str(error), False
            if changed:
                self._changed.set()
        self.items.replace("root", {"root": json.dumps({"problem": problem})})
        self._read_at = time.monotonic()
        self._first.set()

    def _find_folders(self) -> None:
        from tacit.studies.store.folder import results_folders
        from tacit.watch.scan import FolderScan

        found = {folder.path: folder for folder in results_folders(self.path)}
        for gone in self._scans.keys() - found.keys():
            self.items.replace(str(gone), {})
            self.items.replace(f"figures {gone}", {})
            del self._scans[gone]
        for path, folder in found.items():
            if path not in self._scans:
                self._scans[path] = FolderScan(folder)

    def judge(self) -> None:
        """Make the figures of every folder whose rows have changed since the last time."""
        from tacit.watch.figures import figures_of

        for scan in list(self._scans.values()):
            rests_on, parts = scan.judged, scan.parts()
            if self._judged.get(scan.name) == rests_on:
                continue
            facts = {"folder": scan.name, "rows": len({row["run"] for part in parts for row in part.rows})}
            figures: dict[str, str] = {}
            try:
                made, absent = figures_of(parts)
                figures = {
                    f"figure {scan.name} {name}": json.dumps({"folder": scan.name, "place": place, **each})
                    for place, (name, each) in enumerate(made.items())
                }
                facts |= {"absent": absent, "problem": ""}
            except Exception as error:  # whatever a strange folder makes of a figure, the progress stays on the page
                LOG.debug("the figures of %s failed", scan.name, exc_info=True)
                facts |= {"absent": {}, "problem": f"the figures cannot be made now ({type(error).__name__}: {error})"}
            figures[f"figures {scan.name}"] = json.dumps(facts)
            self.items.replace(f"figures {scan.name}", figures)
            self._judged[scan.name] = rests_on

    # -- threads --------------------------------------------------------------------------------------------------
    def _read_loop(self) -> None:
        while not self._stopped.is_set():
            self._asked.clear()  # before the time is looked at: a question in between is not lost
            if time.monotonic() - self._asked_at > IDLE_SECONDS:
                self._asked.wait()
            self._timed(self.read, READ_SECONDS)

    def _judge_loop(self) -> None:
        while not self._stopped.is_set():
            self._changed.wait()
            self._changed.clear()
            self._timed(self.judge, JUDGE_SECONDS)

    def _timed(self, work: Callable[[], None], seconds: float) -> None:
        """Do the work, then pause: for `seconds`, or longer after work that kept a core busy for long."""
        began = time.thread_time()
        try:
            work()
        except Exception as error:  # a thread that ends would leave a page that silently stands still
            LOG.exception("%s could not be read", self.path)
            self.items.replace("root", {"root": json.dumps({"problem": f"{type(error).__name__}: {error}"})})
            self._first.set()
        self._stopped.wait(max(seconds, (time.thread_time() - began) * (1 / AT_MOST - 1)))
