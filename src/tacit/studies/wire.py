"""What a study's process and its workers say to each other: JSON and raw bytes over a pipe, never pickle."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any


@dataclass(frozen=True)
class Message:
    """`kind` says what it is; `facts` is JSON; `content` is a checkpoint or nothing.

    To a worker: `train` (fleet, runs; content: checkpoint to go on from), `calibrate`, `stop`.
    From a worker: `ready`, `progress` (done: share of the fleet), `checkpoint`, `warning` (text), `rows` (rows,
    seconds), `rate` (millions of operations per second), `stopped`, `failed` (text).
    """

    kind: str
    facts: dict[str, Any] = field(default_factory=dict)
    content: bytes = b""


def send(pipe: Connection, message: Message) -> None:
    head = json.dumps({"kind": message.kind, "facts": message.facts}).encode()
    pipe.send_bytes(len(head).to_bytes(8, "little") + head + message.content)


def receive(pipe: Connection) -> Message:
    frame = pipe.recv_bytes()
    end = 8 + int.from_bytes(frame[:8], "little")
    return Message(**json.loads(frame[8:end]), content=frame[end:])
