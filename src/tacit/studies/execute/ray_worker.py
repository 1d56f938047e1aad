"""A worker on a Ray cluster: the same loop as a local worker's, in a thread of a Ray actor, with queues for a pipe.

Ray carries frames of bytes both ways. The study's process fetches the messages of a worker, so rows and
checkpoints are with it as soon as it has fetched them: a lost machine takes only the messages since.
"""

from __future__ import annotations

import os
import queue
import threading
from typing import TYPE_CHECKING, Any

from tacit.studies.execute.messages import Message, encode

if TYPE_CHECKING:
    from tacit.studies.data.facts import Data


UNREAD = 8  # frames, checkpoints among them, that a worker holds for a study's process that does not ask


class QueuePipe:
    """The worker's end of a pipe: what it sends is kept until it is fetched, and like a full pipe it makes it wait."""

    def __init__(self) -> None:
        self.to_worker: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.from_worker: queue.Queue[bytes] = queue.Queue(maxsize=UNREAD)

    def send_bytes(self, frame: bytes, /) -> None:
        self.from_worker.put(frame)

    def recv_bytes(self) -> bytes:
        return self.to_worker.get()

    def poll(self) -> bool:
        return not self.to_worker.empty()

    def fetch(self, seconds: float) -> list[bytes]:
        """What was sent, in order; waits for the first of it, at most so long."""
        try:
            frames = [self.from_worker.get(timeout=seconds)]
        except queue.Empty:
            return []
        while not self.from_worker.empty():
            frames.append(self.from_worker.get())
        return frames


class RayWorker:
    """The actor. `environment` is set before torch is imported; `data` maps names to references of arrays."""

    def __init__(self, environment: dict[str, str], data: dict[str, Any]) -> None:
        os.environ.update(environment)
        self.references, self.data = data, dict[str, "Data"]()
        self.pipe = QueuePipe()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def send(self, frame: bytes) -> None:
        self.pipe.to_worker.put(frame)

    def fetch(self, seconds: float) -> list[bytes]:
        return self.pipe.fetch(seconds)

    def where(self) -> dict[str, Any]:
        """Versions that rows depend on; the process and the node for those who look."""
        import ray

        from tacit._util.provenance import provenance

        node = ray.get_runtime_context().get_node_id()
        return {"versions": provenance()["versions"], "pid": os.getpid(), "node": node}

    def _serve(self) -> None:
        from tacit.studies.execute.worker import serve

        try:
            serve(self.pipe, self._load)  # sets one thread and flushing of subnormals for this very thread
        except BaseException as error:
            # Importing torch failed, most likely: no fleet will ever train here.
            facts = {"text": f"{type(error).__name__}: {error}", "input": False, "start": True}
            self.pipe.send_bytes(encode(Message("failed", facts)))

    def _load(self, name: str) -> Data:
        """The study's process puts the arrays into Ray's store once: a machine needs no dataset of its own."""
        import ray

        from tacit.studies.data.facts import Data

        if name not in self.data:
            self.data[name] = Data(**ray.get(self.references[name]))
        return self.data[name]
