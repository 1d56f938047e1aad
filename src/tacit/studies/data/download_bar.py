"""A download's progress for people: a bar on a terminal, a line per file elsewhere."""

from __future__ import annotations

import sys

from tacit._terminal_bar import TerminalBar
from tacit.studies.data.download import Watch


class Bar(TerminalBar, Watch):
    """Draws on stderr, so that stdout stays for results."""

    def began(self, name: str, *, done: int, total: int) -> None:
        if not sys.stderr.isatty():
            from_here = f", going on after {done:,}" if done else ""
            print(f"fetching {name}: {total:,} bytes{from_here}", file=sys.stderr, flush=True)
            return
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

        columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=Console(stderr=True))
        self.task = self.bar.add_task(name, total=total, completed=done)
        self.bar.start()

    def received(self, done: int, total: int) -> None:
        if self.bar is not None:
            self.bar.update(self.task, completed=done, total=total)
