"""How a study is stopped: Ctrl-C and SIGTERM both make workers send their last checkpoints."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Terminated(KeyboardInterrupt):
    """SIGTERM: what `kill`, batch systems and containers send. Handled like Ctrl-C, with its own exit code."""


def exit_code(stopped: KeyboardInterrupt) -> int:
    """128 + the number of the signal, as shells count: 143 after SIGTERM, 130 after Ctrl-C."""
    return 128 + (signal.SIGTERM if isinstance(stopped, Terminated) else signal.SIGINT)


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Inside, SIGTERM raises Terminated. A handler that someone else has set is left alone, and so are threads."""
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    received = False

    def terminate(number: int, frame: FrameType | None) -> None:
        nonlocal received
        received = True
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except KeyboardInterrupt:
        if received:  # Ray, while it waits, turns whatever a handler raises into a KeyboardInterrupt
            raise Terminated from None
        raise
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Inside, the first Ctrl-C or SIGTERM waits until what is under way is whole; a second one does not."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []

    def wait(number: int, frame: FrameType | None) -> None:
        if waiting:
            restore()
            signal.raise_signal(number)
        waiting.append(number)

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before = {number: handler for number, handler in before.items() if callable(handler)}  # ignored ones stay ignored
    for number in before:
        signal.signal(number, wait)
    try:
        yield
    finally:
        restore()
    for waited in waiting:
        signal.raise_signal(waited)


@contextlib.contextmanager
def sigterm_handler_kept() -> Iterator[None]:
    """`ray.init` puts its own handler of SIGTERM in place of the study's, which asks workers for last checkpoints.

    Until it is put back, SIGTERM is Ray's `sys.exit(SIGTERM)`: turned into the study's own end here.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as ended:
        if ended.code == signal.SIGTERM:
            raise Terminated from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def signals_ignored() -> Iterator[None]:
    """Inside, Ctrl-C and SIGTERM are ignored; afterwards they are handled as before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
