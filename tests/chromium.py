"""Run a page in headless Chromium and read what its script found."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--headless",
    "--no-sandbox",  # tests also run as root, in containers
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def browser() -> str:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed: the page's functions cannot be run")
    return found


def evaluate(page: str, script: str, folder: Path) -> Any:
    """The JSON value of a JavaScript expression, evaluated after the page's own scripts.

    The page is loaded from a file of the folder, so that what runs is the page as it is shipped, plus one script. A
    number passes through JSON without rounding, in both directions.
    """
    hook = f"""<script>
    window.addEventListener("load", () => {{
      let found;
      try {{ found = {{ value: ({script}) }}; }} catch (error) {{ found = {{ error: String(error.stack) }}; }}
      const place = document.createElement("pre");
      place.id = "found";
      place.textContent = JSON.stringify(found);
      document.body.append(place);
    }});
    </script></body>"""
    target = folder / "page.html"
    target.write_text(page.replace("</body>", hook), encoding="utf-8")
    profile = folder / "profile"
    command = [browser(), *FLAGS, f"--user-data-dir={profile}", "--dump-dom", target.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, f"the browser gave no result:\n{done.stderr[-2000:]}"
    answer = json.loads(html.unescape(found[1]))
    assert "error" not in answer, answer["error"]
    return answer["value"]


def evaluate_at(address: str, folder: Path, *, milliseconds: int = 8000) -> Any:
    """The JSON value that a page of a server puts into an element `found` (see `hook`), after so much of its own time.

    The browser's clock is a virtual one: it stands still while an answer is on its way and skips pauses.
    """
    command = [browser(), *FLAGS, f"--user-data-dir={folder / 'profile'}", f"--virtual-time-budget={milliseconds}"]
    done = subprocess.run([*command, "--dump-dom", address], capture_output=True, text=True, timeout=120, check=False)
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, f"the browser gave no result:\n{done.stderr[-2000:]}\n{done.stdout[-3000:]}"
    answer = json.loads(html.unescape(found[1]))
    assert "error" not in answer, answer["error"]
    return answer["value"]


def hook(page: str, script: str, *, when: str) -> str:
    """The page with one more script, which evaluates an expression, perhaps a promise, once a condition holds."""
    return page.replace(
        "</body>",
        f"""<script>
const hooked = setInterval(async () => {{
  if (!({when})) return;
  clearInterval(hooked);
  let found;
  try {{ found = {{ value: await ({script}) }}; }} catch (error) {{ found = {{ error: String(error.stack) }}; }}
  const place = document.createElement("pre");
  place.id = "found";
  place.textContent = JSON.stringify(found);
  document.body.append(place);
}}, 50);
</script></body>""",
    )
