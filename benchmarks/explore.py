"""How fast the page of `tacit explore` answers: every slider at its ends, in headless Chromium.

    python benchmarks/explore.py          # about ten seconds; writes benchmarks/results/explore.json

An answer is what the page itself measures, from the slider's event to the finished picture, plus the time until the
canvas gives its pixels. The mean over more than 300,000 steps is not part of it: the page computes it when the reader
pauses, and those times are stored apart.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from tacit._util.files import write_atomically
from tacit._util.provenance import provenance
from tacit.explore import explore_page

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from chromium import evaluate

RESULT = Path(__file__).parent / "results" / "explore.json"
STATES = (
    "",
    "batchSize=1&rate=-24",
    "batchSize=1&rate=-24&order=mirrored&inner=4&strength=0.1",
    "order=with_replacement&rate=-24&inner=4",
)
ROUNDS = 6
SCRIPT = """(() => {
  const timed = (work) => { const began = performance.now(); work(); return performance.now() - began; };
  const sliders = [...SLIDERS.map(({ key }) => key), "time"];
  const move = (slider, value) => {
    slider.value = value;
    slider.dispatchEvent(new Event("input"));
    return answers[answers.length - 1] + timed(() => $("canvas").getContext("2d").getImageData(0, 0, 1, 1));
  };
  for (let k = 0; k < 30; k++) move($("rate"), -24 + (k % 20)); // the browser compiles what it sees often
  const found = { answers: {}, means: {} };
  for (const state of STATES) {
    for (const key of sliders) {
      preset(state);
      const slider = $(key);
      const values = [slider.min, slider.max, slider.value];
      for (let round = 0; round < ROUNDS; round++)
        for (const value of values) (found.answers[`${state} ${key}=${value}`] ??= []).push(move(slider, value));
    }
    preset(state);
    keptMean = { key: "", path: [] };
    found.means[state] = timed(() => addMean(settingsOf(chosen), { wait: false }));
  }
  return found;
})()"""


def main() -> None:
    script = SCRIPT.replace("STATES", json.dumps(STATES)).replace("ROUNDS", str(ROUNDS))
    with tempfile.TemporaryDirectory(prefix="tacit-explore-") as folder:
        found = evaluate(explore_page(), script, Path(folder))
    times = sorted(time for each in found["answers"].values() for time in each)
    summary = {
        "answers": len(times),
        "median_ms": round(statistics.median(times), 1),
        "95_percent_ms": round(times[int(0.95 * len(times))], 1),
        "largest_ms": round(times[-1], 1),
        "largest_of_best_rounds_ms": round(max(map(min, found["answers"].values())), 1),
        "means_in_a_pause_ms": {state or "first picture": round(time, 1) for state, time in found["means"].items()},
        "load_average": round(os.getloadavg()[0], 1),
        **provenance(),
    }
    write_atomically(RESULT, json.dumps(summary, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps(summary, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
