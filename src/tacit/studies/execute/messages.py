"""Messages between a study's process and its workers: JSON and raw bytes in frames, never pickle."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Protocol

from tacit._util.errors import TacitError
from tacit._util.parsing import parse_json


@dataclass(frozen=True)
class Message:
    """`kind` says what it is; `facts` is JSON; `content` is a checkpoint, weights or nothing.

    To a worker: `train` (runs, checkpoint_seconds, progress_seconds, keep_weights; content: checkpoint to go on from),
    `stop`.
    From a worker: `ready`, `progress` (done: share of the fleet), `checkpoint`, `warning` (text), `weights`
    (run; content: its final parameters), `rows` (rows, seconds, cpu_seconds, made_by), `stopped`, `failed` (text,
    input: whether it is an InputError, start: whether the worker could not even begin).
    From an executor to a study: the messages of workers, but `failed` (text, attempts) means that a fleet is given up.
    """

    kind: str
    facts: dict[str, Any] = field(default_factory=dict)
    content: bytes = b""


class DamagedFrameError(TacitError):
    """Bytes that are no message."""


class Pipe(Protocol):
    """Whole frames of bytes in both directions: a `multiprocessing` connection, or two queues."""

    def send_bytes(self, frame: bytes, /) -> None: ...

    def recv_bytes(self) -> bytes: ...

    def poll(self) -> bool: ...


def send(pipe: Pipe, message: Message) -> None:
    pipe.send_bytes(encode(message))


def receive(pipe: Pipe) -> Message:
    return decode(pipe.recv_bytes())


def encode(message: Message) -> bytes:
    head = json.dumps({"kind": message.kind, "facts": message.facts}).encode()
    return len(head).to_bytes(8, "little") + head + message.content


def decode(frame: bytes) -> Message:
    """The message of a frame; DamagedFrameError when it is none."""
    end = 8 + int.from_bytes(frame[:8], "little")
    try:
        head = parse_json(frame[8:end]) if end <= len(frame) else None
    except ValueError:
        head = None
    if not isinstance(head, dict) or head.keys() != {"kind", "facts"}:
        raise DamagedFrameError("a message between a study and its workers is damaged.")
    if not isinstance(head["kind"], str) or not isinstance(head["facts"], dict):
        raise DamagedFrameError("a message between a study and its workers is of another kind.")
    return Message(head["kind"], head["facts"], content=frame[end:])
