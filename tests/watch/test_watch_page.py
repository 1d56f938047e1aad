"""The page in a browser: it follows a folder, answers the keyboard, and runs nothing that the folder holds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from chromium import browser, evaluate_at, hook
from made_folders import finish, make_folder, rates_study, train_a_part
from tacit.studies.store.folder import ResultsFolder
from tacit.studies.train.packing import Fleet
from tacit.watch.page import content_security_policy
from tacit.watch.server import WatchServer
from tacit.watch.state import Answer, answers

HOSTILE = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"


class Scripted(Answer):
    """Reads the folder at every question, after the next step of a list has changed it."""

    def __init__(self, answer: Answer, steps: list[Callable[[], None]]) -> None:
        super().__init__(answer.make)
        self.steps = steps

    def text(self) -> bytes:
        if self.steps:
            self.steps.pop(0)()
        self._valid_until = 0.0
        return super().text()


def seen(path: Path, script: str, folder: Path, *, when: str, steps: Sequence[Callable[[], None]] = ()) -> Any:
    browser()  # skips before anything is started
    made = {address: Scripted(answer, []) for address, answer in answers(path).items()}
    made["/state?test_accuracy"].steps = list(steps)
    server = WatchServer(made)
    page = hook(server.page.decode(), script, when=when)
    server.page, server.policy = page.encode(), content_security_policy(page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        return evaluate_at(server.address, folder)
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def made(tmp_path: Path) -> tuple[ResultsFolder, list[Fleet]]:
    study = rates_study(rates=20, figures={"mine": {"x": "learning_rate", "title": HOSTILE}}, question=HOSTILE)
    folder, (fleets,) = make_folder(tmp_path / "runs", [study])
    return folder, fleets


LOOK = """(async () => {
  const pause = async () => { // until nothing has been waiting to be drawn for a while
    for (let calm = 0; calm < 3; calm = waiting.size ? 0 : calm + 1) await new Promise((done) => setTimeout(done, 60));
  };
  await pause();
  const cells = [...document.querySelectorAll(".cells button")];
  const canvas = document.querySelector("canvas");
  const before = canvas.toDataURL();
  const found = {
    states: cells.map((cell) => cell.className),
    facts: document.querySelector("progress + p").textContent,
    running: document.querySelector(".running").textContent,
    failure: document.querySelector("pre")?.textContent,
    question: document.querySelector("article > p").textContent,
    figures: [...document.querySelectorAll("figure h4")].map((each) => each.textContent),
    svgs: document.querySelectorAll("figure svg").length,
    colour: getComputedStyle(document.querySelector("figure svg .line")).stroke,
    images: document.querySelectorAll("img").length,
    title: document.title,
    wide: document.documentElement.scrollWidth > innerWidth,
    labelled: [...document.querySelectorAll("button, canvas, progress")].every(
      (each) => each.ariaLabel || each.textContent.trim()),
    focusable: cells.filter((cell) => cell.tabIndex === 0).length,
    answered, error: window.lastError ?? null,
  };
  const press = (key) => document.activeElement.dispatchEvent(
    new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  cells[0].focus();
  press("ArrowRight");
  found.moved = cells.indexOf(document.activeElement);
  document.activeElement.click();
  await pause();
  found.pressed = document.activeElement.ariaPressed;
  found.highlighted = canvas.toDataURL() !== before;
  press("Escape");
  await pause();
  found.released = canvas.toDataURL() === before;
  document.getElementById("theme").click();
  await pause();
  found.themed = canvas.toDataURL() !== before;
  const dark = canvas.toDataURL();
  document.querySelector("article details summary").click();
  await pause();
  found.header = [...document.querySelectorAll("article th")].map((each) => each.textContent);
  found.rows = document.querySelectorAll("article tr").length - 1;
  const metric = document.getElementById("metric");
  metric.value = "full_loss";
  metric.dispatchEvent(new Event("change"));
  for (let tries = 0; tries < 100 && !canvas.ariaLabel.startsWith("training loss"); tries++) await pause();
  await pause();
  found.metric = canvas.ariaLabel;
  found.loss = canvas.toDataURL() !== dark;
  return found;
})()"""


def test_the_page_follows_a_folder_and_answers_the_keyboard(
    made: tuple[ResultsFolder, list[Fleet]], tmp_path: Path
) -> None:
    folder, fleets = made

    def later() -> None:
        finish(folder, fleets[0])
        train_a_part(folder, fleets[1], 0.75)
        folder.begin(fleets[2].id)
        folder.write_failure(fleets[2].id, {"error": f"Traceback\n{HOSTILE}", "attempts": 3})

    found = seen(
        folder.path,
        LOOK,
        tmp_path,
        when="answered >= 2 && judged >= 2",
        steps=[lambda: train_a_part(folder, fleets[0], 0.5), later],
    )
    runs = sum(len(fleet.runs) for fleet in fleets)
    waiting = len(fleets) - 3
    assert sorted(found["states"]) == sorted(["finished", "stopped", "failed", *["waiting"] * waiting])
    assert f"{len(fleets[0].runs)} of {runs} runs" in found["facts"]
    assert found["running"].startswith("no process trains here")
    assert found["failure"].endswith(HOSTILE)
    assert found["question"] == HOSTILE
    assert found["figures"] == [f"Mine: {HOSTILE} "]
    assert found["svgs"] == 1
    assert found["colour"] not in ("none", "rgb(0, 0, 0)")
    assert found["images"] == 0
    assert found["title"] == f"{100 * len(fleets[0].runs) // runs} % of {runs} runs · tacit watch"
    assert not found["wide"]
    assert found["labelled"]
    assert found["focusable"] == 1
    assert found["error"] is None
    assert found["moved"] == 1
    assert found["pressed"] == "true"
    assert found["highlighted"]
    assert found["released"]
    assert found["themed"]
    assert found["header"] == [
        "learning rate ε", "seed", "epochs", "best test accuracy", "last test accuracy", "fleet"
    ]  # fmt: skip
    assert found["rows"] == len(fleets[0].runs) + len(fleets[1].runs)
    assert found["metric"].startswith("training loss of the runs of rates against epochs; the best is 0.1")
    assert found["loss"]


def test_the_page_shows_two_thousand_runs(tmp_path: Path) -> None:
    study = rates_study(rates=20, seeds=100)
    folder, (fleets,) = make_folder(tmp_path / "runs", [study])
    for fleet in fleets:
        finish(folder, fleet)
    script = """(() => ({ cells: document.querySelectorAll(".cells .finished").length,
      facts: document.querySelector("progress + p").textContent, error: window.lastError ?? null }))()"""
    found = seen(folder.path, script, tmp_path, when="answered >= 1")
    assert found == {"cells": len(fleets), "facts": "100 % done: 2000 of 2000 runs", "error": None}
