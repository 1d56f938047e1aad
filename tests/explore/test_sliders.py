"""The page answers its controls: every slider, button and order changes the picture without an error."""

from __future__ import annotations

from pathlib import Path

from chromium import evaluate
from tacit.explore import explore_page

# Moves each slider to both ends, chooses each order, presses each button, and draws; counts what changed the canvas.
SCRIPT = """(() => {
  const picture = () => $("canvas").toDataURL();
  const first = picture();
  const changed = {};
  for (const { key } of SLIDERS) {
    preset("");
    const values = [$(key).min, $(key).max].map((value) => {
      $(key).value = value;
      $(key).dispatchEvent(new Event("input"));
      return picture();
    });
    changed[key] = new Set([first, ...values]).size;
  }
  changed.order = new Set(ORDERS.map(([order]) => (preset("order=" + order), picture()))).size;
  const presets = [...document.querySelectorAll("[data-preset]")].map((button) => {
    button.click();
    const known = new URLSearchParams(button.dataset.preset);
    return [...known.keys()].every((key) => key in FIRST || key in FIRST_SHOWN);
  });
  $("reset").click();
  changed.reset = picture() === first;
  $("handle").dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowUp" }));
  changed.handle = picture() !== first;
  const labelled = [...document.querySelectorAll("input, select, button")].every(
    (control) => control.labels?.length || control.ariaLabel || control.textContent.trim());
  const width = document.documentElement.scrollWidth <= innerWidth;
  return { changed, presets, labelled, width };
})()"""


def test_every_control_changes_the_picture(tmp_path: Path) -> None:
    found = evaluate(explore_page(), SCRIPT, tmp_path)
    changed = found["changed"]
    assert changed.pop("reset"), "the reset button does not bring the first picture back"
    assert changed.pop("handle"), "arrow keys do not move the starting point"
    assert all(count >= 2 for count in changed.values()), changed
    assert len(found["presets"]) > 10
    assert all(found["presets"])
    assert found["labelled"], "a control has no name for a screen reader"
    assert found["width"], "the page is wider than its window"
