"""`tacit data`: which datasets there are and where; fetch them; check every byte of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tacit._errors import InputError

Names = Annotated[list[str] | None, typer.Argument(help="fashion_mnist, cifar10; both without a name.")]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", metavar="DIR", help="A folder with datasets; TACIT_DATA without it.", show_default=False
    ),
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="List, fetch and check the datasets of the studies.", no_args_is_help=True)
    group.command(name="list")(list_)
    group.command(name="get")(get)
    group.command(name="verify")(verify)
    app.add_typer(group, name="data", rich_help_panel=None)


def list_(data_dir: DataDir = None) -> None:
    """Show every dataset: its size, where it lies on this machine, and whose it is. Nothing is read or fetched.

    Example: `tacit data list`
    """
    from tacit.studies.data.cache import cache_folder
    from tacit.studies.data.facts import DATASETS
    from tacit.studies.data.files import locate
    from tacit.studies.data.published import PUBLISHED_DATASETS

    for name, facts in DATASETS.items():
        shape = "x".join(str(length) for length in facts.shape)
        print(f"{name}: {facts.train_size:,} training and {facts.test_size:,} test examples of {shape}")
        if name not in PUBLISHED_DATASETS:
            print("  made on first use")
            continue
        dataset, copy = PUBLISHED_DATASETS[name], locate(name, data_dir)
        if copy is None:
            size = sum(published.size for published in dataset.files)
            print(f"  not here: `tacit data get {name}` fetches {size / 1e6:,.0f} MB")
        else:
            print(f"  in {copy.files[0] if len(copy.files) == 1 else copy.files[0].parent}")
        print(f"  {dataset.homepage} ({dataset.terms})")
    print(f"decoded arrays are kept in {cache_folder()}")


def get(names: Names = None, data_dir: DataDir = None) -> None:
    """Fetch datasets from their authors' addresses or from mirrors, and check them.

    Files go to --data-dir, to TACIT_DATA, or to the user's cache folder. A copy that is found whole and right, here or
    where other programs keep theirs, is not fetched again.

    Examples:

    * `tacit data get`

    * `tacit data get cifar10 --data-dir data`
    """
    from tacit.studies.data.download import fetch

    for name in _known(names):
        for path in fetch(name, data_dir):
            print(f"{path} is here and as published")


def verify(names: Names = None, data_dir: DataDir = None) -> None:
    """Check every byte of every copy that is found; exit code 2 if a file is damaged or missing, naming it.

    With --data-dir only that folder is searched, in our own layout and in torchvision's.

    Examples:

    * `tacit data verify`

    * `tacit data verify cifar10 --data-dir data`
    """
    from tacit.studies.data.check import check_root, check_sums
    from tacit.studies.data.files import roots

    found, wrong = [], []
    folders = [data_dir] if data_dir is not None else roots()
    for folder in dict.fromkeys(Path(os.path.abspath(path)) for path in folders):
        here = 0
        for name in _known(names):
            for checked in check_root(name, folder):
                print(f"{'right' if checked.right else 'WRONG'}  {checked.path} {checked.words}", flush=True)
                here += 1
                wrong += [] if checked.right else [checked]
                found.append(name)
        for checked in check_sums(folder) if here else ():
            print(f"{'right' if checked.right else 'WRONG'}  {checked.path} {checked.words}", flush=True)
            wrong += [] if checked.right else [checked]
    missing = [name for name in _known(names) if name not in found] if names or not found else []
    if missing:
        where = f"in {data_dir}" if data_dir is not None else "on this machine, as far as is known"
        raise InputError(f"there is no {' and no '.join(missing)} {where}; run `tacit data get {' '.join(missing)}`.")
    if wrong:
        listed = ", ".join(str(checked.path) for checked in wrong)
        count = f"{len(wrong)} file{'s are' if len(wrong) > 1 else ' is'} not as published"
        raise InputError(f"{count}: {listed}. Remove what is damaged and run `tacit data get`.")


def _known(names: list[str] | None) -> list[str]:
    from tacit.studies.data.published import PUBLISHED_DATASETS

    for name in names or ():
        if name not in PUBLISHED_DATASETS:
            remedy = (
                "it is made on first use"
                if name in ("mnist1d", "mnist1d_16k")
                else f"use one of {', '.join(PUBLISHED_DATASETS)}"
            )
            raise InputError(f"there is nothing to fetch or check for dataset {name!r}; {remedy}.")
    return list(dict.fromkeys(names)) if names else list(PUBLISHED_DATASETS)
