"""A tutorial is a Python script in cells; this runs one and makes a page of its text, its code and its output.

    python docs/site/tutorial.py SCRIPT FOLDER     # writes FOLDER/NAME.md and its pictures

Cells begin with a line `# %%`, cells of text with `# %% [markdown]`, as Jupyter and most editors read them. A line
`# picture: TEXT` in a cell of code describes the picture that the cell draws, for readers who cannot see it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CELL = re.compile(r"^# %%(?P<markdown> \[markdown\])?$", re.MULTILINE)
_PICTURE = re.compile(r"^# picture: (.+)\n?", re.MULTILINE)


@dataclass(frozen=True)
class Cell:
    """A piece of a script: text for the reader, or code with the description of its picture."""

    text: str
    is_code: bool
    line: int
    picture: str | None = None


def cells_of(script: str) -> list[Cell]:
    """The cells of a script. What stands before the first one (its docstring) is not part of the page.

    >>> [cell.text for cell in cells_of("# %% [markdown]\\n# One **text**.\\n\\n# %%\\nprint(1)\\n")]
    ['One **text**.', 'print(1)']
    """
    starts = [*_CELL.finditer(script)]
    ends = [found.start() for found in starts[1:]] + [len(script)]
    made = []
    for found, end in zip(starts, ends, strict=True):
        body, line = script[found.end() : end], script[: found.end()].count("\n") + 1
        if found["markdown"]:
            text = "\n".join(re.sub(r"^# ?", "", row) for row in body.strip().splitlines())
            made.append(Cell(text, is_code=False, line=line))
        else:
            described = _PICTURE.search(body)
            made.append(Cell(body.strip(), is_code=True, line=line, picture=described[1] if described else None))
    return [cell for cell in made if cell.text]


def page_of(script: Path, into: Path) -> str:
    """The page of a script, after running it from top to bottom; pictures are written beside the page.

    It runs in an empty folder, so that it leaves nothing behind, and a warning ends it as an error does.
    """
    namespace: dict[str, Any] = {"__name__": "__main__", "__file__": str(script.resolve())}
    source, parts, drawn = script.read_text(encoding="utf-8"), [], 0
    with tempfile.TemporaryDirectory() as empty, contextlib.chdir(empty), warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*torch.jit.script.*", DeprecationWarning)  # torch warns of itself
        for cell in cells_of(source):
            if not cell.is_code:
                parts.append(cell.text)
                continue
            printed = _run(cell, script, namespace)
            parts.append(f"```python\n{_PICTURE.sub('', cell.text).strip()}\n```")
            if printed.strip():
                parts.append(f"``` {{ .text .output }}\n{printed.rstrip()}\n```")
            for picture in _pictures():
                drawn += 1
                name = f"{script.stem.replace('_', '-')}-{drawn}.svg"
                (into / name).write_bytes(picture)
                if cell.picture is None:
                    raise ValueError(f"{script.name}, line {cell.line}: a picture without a line '# picture: TEXT'.")
                parts.append(f"![{cell.picture}]({name})")
    return "\n\n".join(parts) + "\n"


def _run(cell: Cell, script: Path, namespace: dict[str, Any]) -> str:
    """What the cell prints. Line numbers of errors are those of the script."""
    printed = io.StringIO()
    code = compile("\n" * cell.line + cell.text, str(script), "exec")
    with contextlib.redirect_stdout(printed):
        exec(code, namespace)
    return printed.getvalue()


def _pictures() -> list[bytes]:
    """The figures that matplotlib has open, as SVG; they are closed."""
    plt = sys.modules.get("matplotlib.pyplot")
    if plt is None:
        return []
    made = []
    for number in plt.get_fignums():
        content = io.BytesIO()
        plt.figure(number).savefig(content, format="svg", bbox_inches="tight", metadata={"Date": None})
        made.append(content.getvalue())
    plt.close("all")
    return made


def main(script: str, into: str) -> None:
    os.environ.setdefault("MPLBACKEND", "Agg")
    folder = Path(into).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    name = Path(script).stem.replace("_", "-")
    page = page_of(Path(script).resolve(), folder)
    (folder / f"{name}.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
