"""Failures without processes: how often a fleet is tried, from what, and what ends a study for all."""

from __future__ import annotations

from collections import deque

import pytest

from tacit import InputError
from tacit._util.errors import TacitError
from tacit.studies.describe.study import parse_study
from tacit.studies.execute.executor import FALSE_STARTS, Attempts, Executor, FleetTask, Lost, Worker
from tacit.studies.execute.messages import Message
from tacit.studies.train.packing import Fleet, pack

STUDY = parse_study(
    {
        "name": "two",
        "fixed": {"train_size": 64, "batch_size": 16, "width": 8, "depth": 1, "epochs": 1, "evaluations": 1},
        "grid": {"learning_rate": [0.1], "strength": [0.0, 0.1]},
    }
)
ONE, TWO = pack(STUDY.runs)
ROWS = Message("rows", {"rows": [], "seconds": 0.1})
Heard = Message | Lost


class Scripted(Worker):
    """Says the next line of its pool's script for the fleet that it is given."""

    def __init__(self, pool: ScriptedPool) -> None:
        super().__init__()
        self.pool, self.ended = pool, False

    def send(self, message: Message) -> None:
        self.pool.sent.append(message)

    def end(self) -> None:
        self.ended = True


class ScriptedPool(Executor):
    def __init__(
        self, script: dict[str, list[Heard]], *, attempts: int = 3, start: Heard | None = None, workers: int = 1
    ) -> None:
        super().__init__(workers, attempts=attempts)
        self.script = {fleet: deque(heard) for fleet, heard in script.items()}
        self.start_with = start if start is not None else Message("ready")
        self.sent: list[Message] = []
        self.made: list[Scripted] = []

    def _start(self) -> Worker:
        self.made.append(Scripted(self))
        return self.made[-1]

    def _receive(self) -> list[tuple[Worker, Heard]]:
        for worker in self._pool:
            if not worker.ready:
                return [(worker, self.start_with)]
            if worker.task is not None:
                return [(worker, self.script[worker.task.fleet.id].popleft())]
        return []


class Book:
    def __init__(self) -> None:
        self.heard: list[tuple[str, Message]] = []

    def __call__(self, fleet: Fleet, message: Message) -> None:
        self.heard.append((fleet.id, message))

    def kinds(self, fleet: Fleet) -> list[str]:
        return [message.kind for name, message in self.heard if name == fleet.id]


def failed(text: str = "Traceback ...\nValueError: no") -> Message:
    return Message("failed", {"text": text, "input": False})


def test_losses_and_exceptions_count_alike_and_the_third_gives_the_fleet_up() -> None:
    pool, book = ScriptedPool({ONE.id: [Lost("was killed"), failed(), Lost("was killed")], TWO.id: [ROWS]}), Book()
    pool.run([FleetTask(ONE), FleetTask(TWO)], book)
    assert book.kinds(ONE) == ["warning", "warning", "failed"]
    assert book.kinds(TWO) == ["rows"]
    assert book.heard[2][1].facts == {"text": "its worker was killed", "attempts": 3}


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_the_number_of_attempts_can_be_chosen(limit: int) -> None:
    pool, book = ScriptedPool({ONE.id: [Lost("was killed")] * 9}, attempts=limit), Book()
    pool.run([FleetTask(ONE)], book)
    assert book.kinds(ONE) == ["warning"] * (limit - 1) + ["failed"]


def test_a_fleet_that_succeeds_at_last_is_not_failed() -> None:
    pool, book = ScriptedPool({ONE.id: [Lost("was killed"), Lost("was killed"), ROWS]}), Book()
    pool.run([FleetTask(ONE)], book)
    assert book.kinds(ONE) == ["warning", "warning", "rows"]


def test_a_retry_starts_from_the_last_checkpoint_that_arrived() -> None:
    early, late = Message("checkpoint", content=b"early"), Message("checkpoint", content=b"late")
    pool = ScriptedPool({ONE.id: [early, late, failed(), Lost("was killed"), ROWS]})
    pool.run([FleetTask(ONE, b"stored")], Book())
    assert [message.content for message in pool.sent if message.kind == "train"] == [b"stored", b"late", b"late"]


def test_a_fleet_that_gets_further_each_time_is_never_given_up() -> None:
    further = [Message("checkpoint", content=b"%d" % number) for number in range(9)]
    script = [event for each in further for event in (each, Lost("was lost with its machine"))]
    pool, book = ScriptedPool({ONE.id: [*script, ROWS]}), Book()
    pool.run([FleetTask(ONE)], book)
    assert book.kinds(ONE) == ["checkpoint", "warning"] * 9 + ["rows"]


def test_an_error_after_the_last_checkpoint_is_met_three_times() -> None:
    checkpoint = Message("checkpoint", content=b"late")
    pool, book = ScriptedPool({ONE.id: [Lost("was killed"), checkpoint, failed(), failed(), failed()]}), Book()
    pool.run([FleetTask(ONE)], book)
    assert book.kinds(ONE) == ["warning", "checkpoint", "warning", "warning", "failed"]


def test_a_worker_that_raised_is_not_used_again() -> None:
    pool = ScriptedPool({ONE.id: [failed(), ROWS]})
    pool.run([FleetTask(ONE)], Book())
    assert [worker.ended for worker in pool.made] == [True, False]


def test_a_worker_that_cannot_start_anywhere_ends_the_study_with_a_sentence() -> None:
    pool = ScriptedPool({}, start=Lost("ended with code 1", broken=True))
    with pytest.raises(TacitError, match="a worker ended with code 1 while starting"):
        pool.run([FleetTask(ONE)], Book())
    assert len(pool.made) == 1


def test_workers_that_are_lost_before_they_are_ready_do_not_go_on_for_ever() -> None:
    pool = ScriptedPool({}, attempts=100, start=Lost("was killed"))
    with pytest.raises(TacitError, match="while starting"):
        pool.run([FleetTask(ONE)], Book())
    assert len(pool.made) == FALSE_STARTS


def test_a_machine_lost_while_many_workers_start_on_it_does_not_end_the_study() -> None:
    pool = ScriptedPool({ONE.id: [ROWS]}, attempts=100, start=Lost("was lost with its machine"), workers=32)
    real = pool._receive

    def listen() -> list[tuple[Worker, Heard]]:
        if len(pool.made) > 32:  # the next ones start on another machine
            pool.start_with = Message("ready")
        return real()

    pool._receive = listen  # type: ignore[method-assign]
    book = Book()
    pool.run([FleetTask(ONE)], book)
    assert book.kinds(ONE)[-1] == "rows"


def test_what_a_worker_refuses_as_input_is_one_sentence_and_ends_the_study() -> None:
    refusal = Message("failed", {"text": "device is cuda; this machine has none.", "input": True})
    pool = ScriptedPool({ONE.id: [refusal], TWO.id: [ROWS]})
    with pytest.raises(InputError, match="device is cuda"):
        pool.run([FleetTask(ONE), FleetTask(TWO)], Book())
    assert [worker.ended for worker in pool.made] == [True]


def test_a_warning_names_the_fleet_the_error_and_what_follows() -> None:
    book, error = Book(), "Traceback\n  somewhere\nMemoryError: too big.\n"
    attempts = Attempts()
    attempts.again(FleetTask(ONE), None, error=error, handle=book)
    attempts.again(FleetTask(ONE, b"checkpoint"), None, error=error, handle=book)
    assert [message.facts["text"] for _, message in book.heard] == [
        f"fleet {ONE.id}: MemoryError: too big; it starts over (failure 1 of 3).",
        f"fleet {ONE.id}: MemoryError: too big; it goes on from its last checkpoint (failure 2 of 3).",
    ]
