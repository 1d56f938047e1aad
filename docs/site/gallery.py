"""The gallery: every stored figure with its claim and its verdict, from the files of docs/results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
NAMES = {
    "mnist1d": "MNIST-1D",
    "mnist1d-conv": "MNIST-1D, a convolutional network",
    "cifar10": "CIFAR-10, 4,096 images with crops and flips",
    "cifar10-small": "CIFAR-10, 1,024 images",
    "fashion-mnist": "Fashion-MNIST, the paper's MLP",
    "fashion-mnist-small": "Fashion-MNIST, an MLP of width 128",
}
HEAD = """# Gallery

Every stored figure, with the claim of the paper that it tests and the verdict of the present rules.
On MNIST-1D they were written before the runs.
[The claims, one by one](results.md) has the numbers of all of them in tables."""


def page() -> str:
    """One section per folder of results, in the order of NAMES; others follow under their own name."""
    folders = [path.parent for path in RESULTS.glob("*/results.json")]
    order = [*NAMES, *sorted(path.name for path in folders)]
    folders.sort(key=lambda path: order.index(path.name))
    return "\n\n".join([HEAD, *map(section, folders)]) + "\n"


def section(folder: Path) -> str:
    stored = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    environment = stored["environment"]
    facts = (
        f"`{stored['command']}`: {stored['runs']:,} runs, {environment['training']} of training on "
        f"{environment['machine']}, {environment['ended'][:10]}, torch {environment['torch'].split('+')[0]}."
    )
    title = NAMES.get(folder.name, folder.name)
    figures = [one for figure in stored["figures"] if (one := entry(folder, figure))]
    return "\n\n".join([f"## {title} {{ #{folder.name} }}", facts, *figures])


def entry(folder: Path, figure: dict[str, Any]) -> str | None:
    """Title, picture, claim, what was seen, verdict, caption; None for a figure that has no picture."""
    name = figure["figure"]
    picture = folder / f"figure-{name}.svg"
    if not picture.is_file():
        return None
    verdict = figure["verdict"]
    title = f"### {'Figure ' if name[0].isdigit() else ''}{name}: {figure['title']} {{ #{folder.name}-{name} }}"
    image = f"![{figure['title']}](results/{folder.name}/{picture.name}){{ loading=lazy }}"
    outcome = f"**{verdict['outcome']}**{{ .verdict .{verdict['outcome']} }}"
    claim = f"{outcome} {verdict['claim']} {verdict['seen']}"
    return "\n\n".join([title, claim, image, f"<small>{figure['caption']}</small>"])
