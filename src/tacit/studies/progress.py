"""A study's progress for people: a bar with rate and remaining time on a terminal, otherwise a line now and then."""

from __future__ import annotations

import sys
import time

from tacit._terminal_bar import TerminalBar
from tacit.studies.estimate import in_words
from tacit.studies.plan import Plan
from tacit.studies.runner import Watcher

LINE_SECONDS = 30.0


class Display(TerminalBar, Watcher):
    """Draws on stderr, so that stdout stays for results."""

    def __init__(self, *, line_seconds: float = LINE_SECONDS) -> None:
        self.line_seconds = line_seconds
        self.total_updates = 0
        self.began = self.last_line = time.monotonic()

    def planned(self, plan: Plan) -> None:
        print(plan, file=sys.stderr, flush=True)
        self.name = plan.study.name
        self.total_updates = sum(run.total_updates for fleet in plan.fleets for run in fleet.runs)
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

    def _draw_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        columns = ("{task.description}", BarColumn(), TaskProgressColumn())
        words = (TextColumn("{task.fields[rate]}"), TextColumn("{task.fields[left]} left"))
        self.bar = Progress(*columns, *words, console=Console(stderr=True))
        self.task = self.bar.add_task(self.name, total=1.0, completed=0.0, rate="", left="")
        self.bar.start()
