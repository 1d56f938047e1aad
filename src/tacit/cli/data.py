"""`tacit data`: which datasets there are and where; fetch them; check every copy of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacit._util.errors import InputError

if TYPE_CHECKING:
    from tacit.studies.data.facts import Dataset

Names = Annotated[list[str] | None, typer.Argument(help="fashion_mnist, cifar10; both without a name.")]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", metavar="DIR", help="A folder with datasets; TACIT_DATA without it.", show_default=False
    ),
]
Check = Annotated[bool, typer.Option("--check", help="Check every copy that is found, and fetch nothing.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="List, fetch and check the datasets of the studies.", no_args_is_help=True)
    group.command(name="list")(list_)
    group.command(name="get")(get)
    app.add_typer(group, name="data", rich_help_panel=None)


def list_(data_dir: DataDir = None) -> None:
    """Show every dataset: its size, where it lies on this machine, and whose it is. Nothing is read or fetched.

    Example: `tacit data list`
    """
    from tacit.studies.data.cache import cache_folder
    from tacit.studies.data.datasets import DATASETS
    from tacit.studies.data.files import locate, place

    for name, dataset in DATASETS.items():
        shape = "x".join(str(length) for length in dataset.facts.shape)
        print(f"{name}: {dataset.facts.train_size:,} training and {dataset.facts.test_size:,} test examples of {shape}")
        if not dataset.urls:
            print("  made on first use")
            continue
        copy = locate(dataset, data_dir)
        missing = f"not here: `tacit data get {name}` fetches {dataset.size / 1e6:,.0f} MB"
        print(f"  {f'in {place(copy)}' if copy else missing}")
        print(f"  {dataset.homepage} ({dataset.terms})")
    print(f"decoded arrays are kept in {cache_folder()}")


def get(names: Names = None, data_dir: DataDir = None, check: Check = False) -> None:
    """Fetch datasets from their authors' addresses or from mirrors, and check them.

    Files go to --data-dir, to TACIT_DATA, or to the user's cache folder. A right copy, here or where other programs
    keep theirs, is not fetched again. With --data-dir only that folder is searched. With --check the exit code is 2 if
    a copy is damaged or there is none.

    Examples:

    * `tacit data get`

    * `tacit data get cifar10 --data-dir data`

    * `tacit data get --check`
    """
    from tacit.studies.data.datasets import DATASETS, PUBLISHED
    from tacit.studies.data.files import place, read_or_fetch

    for name in names or ():
        if name not in PUBLISHED:
            remedy = "it is made on first use" if name in DATASETS else f"use one of {', '.join(PUBLISHED)}"
            raise InputError(f"there is nothing to fetch or check for dataset {name!r}; {remedy}.")
    wanted = [DATASETS[name] for name in dict.fromkeys(names or PUBLISHED)]
    if check:
        _check(wanted, data_dir, named=bool(names))
        return
    for dataset in wanted:
        _, copy = read_or_fetch(dataset, data_dir)
        print(f"{place(copy)} is here and as published")


def _check(wanted: list[Dataset], data_dir: Path | None, *, named: bool) -> None:
    """Print what each copy is; InputError when one is damaged, or a dataset that was named has none."""
    from tacit.studies.data.files import DamagedCopyError, copies, place, read_copy

    found, wrong = set(), []
    for dataset in wanted:
        for copy in copies(dataset, data_dir):
            found.add(dataset.name)
            try:
                read_copy(dataset, copy)
                print(f"right  {place(copy)} is {dataset.name} as published", flush=True)
            except DamagedCopyError as error:
                print(f"WRONG  {place(copy)} {error}", flush=True)
                wrong.append(str(place(copy)))
    missing = [dataset.name for dataset in wanted if dataset.name not in found] if named or not found else []
    if missing:
        where = f"in {data_dir}" if data_dir is not None else "on this machine, as far as is known"
        raise InputError(f"there is no {' and no '.join(missing)} {where}; run `tacit data get {' '.join(missing)}`.")
    if wrong:
        raise InputError(f"not as published: {', '.join(wrong)}. Remove what is damaged and run `tacit data get`.")
