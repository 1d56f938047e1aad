"""What every progress display shares: warnings go above the bar, or to stderr where there is no terminal."""

from __future__ import annotations

import sys
from typing import Any


class TerminalBar:
    """`bar` is a rich progress bar while one is drawn, and `task` the number it gave its only line."""

    bar: Any = None
    task: Any = None

    def warned(self, text: str) -> None:
        if self.bar is not None:
            self.bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def ended(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
