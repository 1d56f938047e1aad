"""A study's progress: who is told of it, and what a terminal shows."""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING, Any

from tacit.studies.cost import in_words

if TYPE_CHECKING:
    from tacit.studies.plan import Plan

LINE_SECONDS = 30.0
LOG = logging.getLogger("tacit.studies")


class Watcher:
    """Receives the plan, progress and warnings of a study while it runs. This one logs; the command line draws."""

    def planned(self, plan: Plan) -> None:
        LOG.info("%s", plan)

    def advanced(self, done: float) -> None:
        """`done` is the share of the work that was left at the start, from 0 to 1."""

    def warned(self, text: str) -> None:
        LOG.warning("%s", text)

    def ended(self) -> None:
        """Called once, however it ends."""


class ProgressBar(Watcher):
    """A bar with rate and remaining time on a terminal, otherwise a line now and then; warnings go above the bar.

    On stderr, so that stdout stays for results.
    """

    def __init__(self, *, line_seconds: float = LINE_SECONDS) -> None:
        self.line_seconds = line_seconds
        self.total_updates = 0
        self.began = self.last_line = time.monotonic()
        self.bar: Any = None  # a rich progress bar while one is drawn, and the number of its only line
        self.task: Any = None

    def planned(self, plan: Plan) -> None:
        print(plan, file=sys.stderr, flush=True)
        self.name = plan.study.name
        self.total_updates = plan.cost.updates
        self.began = self.last_line = time.monotonic()
        if plan.fleets and sys.stderr.isatty():
            self._draw_bar()

    def advanced(self, done: float) -> None:
        seconds = time.monotonic() - self.began
        rate = done * self.total_updates / seconds if seconds > 0 else 0.0
        left = in_words(seconds * (1 - done) / done) if done > 0 else "unknown time"
        left = "nothing" if done >= 1 else left
        if self.bar is not None:
            self.bar.update(self.task, completed=done, rate=f"{rate:,.0f} run-updates/s", left=left)
        elif time.monotonic() - self.last_line >= self.line_seconds:
            self.last_line = time.monotonic()
            text = f"{self.name}: {done:.0%}, {rate:,.0f} run-updates/s, {left} left"
            print(text, file=sys.stderr, flush=True)

    def warned(self, text: str) -> None:
        if self.bar is not None:
            self.bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def ended(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def _draw_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        columns = ("{task.description}", BarColumn(), TaskProgressColumn())
        words = (TextColumn("{task.fields[rate]}"), TextColumn("{task.fields[left]} left"))
        self.bar = Progress(*columns, *words, console=Console(stderr=True))
        self.task = self.bar.add_task(self.name, total=1.0, completed=0.0, rate="", left="")
        self.bar.start()
