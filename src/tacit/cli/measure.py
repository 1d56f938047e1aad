"""`tacit measure` and `tacit advise`: what SGD regularizes in a model, and what another batch size would need."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacit._util.errors import InputError
from tacit.cli._output_file import check_output_file

if TYPE_CHECKING:
    from tacit.problem import Problem

REGIME_ROWS = 8  # gradients in float64 that the regime report holds for each minibatch at its peak
REGIME_BYTES = 4 * 2**30
Folder = Annotated[Path | None, typer.Argument(help="A folder of results, for --run.", show_default=False)]
Run = Annotated[
    str | None,
    typer.Option(metavar="HASH", help="A trained run of FOLDER, by the first digits of its hash; needs kept weights."),
]
Own = Annotated[str | None, typer.Option("--problem", help="module:function that returns a tacit.Problem.")]
Sample = Annotated[int | None, typer.Option(help="Draw so many examples; without it all are used, exactly.")]
Confidence = Annotated[float, typer.Option(help="Of the intervals.")]
Seed = Annotated[int, typer.Option(help="Of the sample.")]
Json = Annotated[Path | None, typer.Option("--json", help="Also write every number to this file.")]


def register(app: typer.Typer) -> None:
    app.command("measure")(measure)
    app.command("advise")(advise)


def measure(
    folder: Folder = None,
    run: Run = None,
    problem: Own = None,
    batch_size: Annotated[list[int] | None, typer.Option(help="B; may be repeated.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="ε: adds ε·λ_max, which costs tens of passes.")] = None,
    sample: Sample = None,
    confidence: Confidence = 0.95,
    seed: Seed = 0,
    json: Json = None,
) -> None:
    """C_reg, ‖∇C‖², Γ and the noise scale of a model, each with its interval. Trains nothing.

    Examples:

        tacit measure runs/stripes --run 3f2a --batch-size 16 --batch-size 256

        tacit measure --problem mypackage.mymodule:make_problem --sample 512 --learning-rate 0.125 --json seen.json
    """
    check_output_file("--json", json)
    posed = _problem(folder, run, problem)
    from tacit.diagnostics import measure

    seen = measure(
        posed, batch_size=batch_size or None, learning_rate=learning_rate, sample=sample, confidence=confidence,
        seed=seed,
    )  # fmt: skip
    print(seen)
    _write(json, seen.to_json())


def advise(
    learning_rate: Annotated[float, typer.Option(help="ε now.")],
    batch_size: Annotated[int, typer.Option(help="B now.")],
    folder: Folder = None,
    run: Run = None,
    problem: Own = None,
    new_batch_size: Annotated[int | None, typer.Option(help="B' wanted.")] = None,
    new_learning_rate: Annotated[float | None, typer.Option(help="ε' wanted.")] = None,
    micro_batch_size: Annotated[int | None, typer.Option(help="b of the penalty; by default B.")] = None,
    sampled: Annotated[
        int | None, typer.Option(min=1, help="q: the penalty on q drawn micro-batches; by default the fewest stable.")
    ] = None,
    momentum: Annotated[float, typer.Option(help="β of SGD, before and after.")] = 0.0,
    nesterov: Annotated[bool, typer.Option("--nesterov", help="The momentum is Nesterov's.")] = False,
    every: Annotated[int, typer.Option(min=1, help="k: the penalty on every k-th step.")] = 1,
    sample: Sample = None,
    confidence: Confidence = 0.95,
    seed: Seed = 0,
    stability: Annotated[bool, typer.Option(help="Measure the largest Hessian eigenvalue too: tens of passes.")] = True,
    price: Annotated[bool, typer.Option(help="Time the advised step and its cheaper equals, about a second.")] = True,
    regime: Annotated[bool, typer.Option("--regime", help="Add the regime report at ε and B.")] = False,
    json: Json = None,
) -> None:
    """From (ε, B) to another batch size or rate with the same implicit regularization.

    Examples:

        tacit advise runs/stripes --run 3f2a --learning-rate 0.125 --batch-size 16 --new-batch-size 256

        tacit advise --problem mymodule:make_problem --learning-rate 0.1 --batch-size 32 --new-batch-size 1024
    """
    check_output_file("--json", json)
    from tacit.advice import match
    from tacit.advice.checks import check_match, check_problem
    from tacit.advice.optimizers import optimizer_settings
    from tacit.diagnostics import measure

    optimizer_settings(None, momentum, nesterov)
    posed = _problem(folder, run, problem)
    if regime:
        _check_regime(posed, batch_size)
    check_match(
        posed.train_size, learning_rate, batch_size, new_batch_size, new_learning_rate, micro_batch_size
    )  # before measuring, which may take a while
    check_problem(posed)
    sizes = [size for size in (batch_size, new_batch_size, micro_batch_size) if size is not None]
    seen = measure(
        posed, batch_size=sizes, learning_rate=learning_rate, sample=sample, confidence=confidence, seed=seed,
        curvature=stability,
    )  # fmt: skip
    advice = match(
        seen, learning_rate=learning_rate, batch_size=batch_size, new_batch_size=new_batch_size,
        new_learning_rate=new_learning_rate, micro_batch_size=micro_batch_size, momentum=momentum, nesterov=nesterov,
        every=every, sampled=sampled,
    )  # fmt: skip
    print(advice)
    size = advice.new_batch_size
    if price and advice.decided and advice.strength > 0 and size % advice.micro_batch_size == 0:
        print(advice.price(posed.model, posed.loss_fn, posed.inputs[:size], posed.targets[:size]))
    if regime:
        print(_regime(posed, learning_rate, batch_size))
    _write(json, advice.to_json())


def _problem(folder: Path | None, run: str | None, own: str | None) -> Problem:
    """A problem of the user's own, or a run with the model and data that it was trained with."""
    example = "`tacit measure runs/stripes --run 3f2a`"
    if own is not None:
        if folder is not None or run is not None:
            raise InputError("--problem is given beside FOLDER or --run, which is a model too; leave one of them out.")
        from tacit._util.own_code import call_for
        from tacit.problem import Problem

        return call_for(own, Problem, "a tacit.Problem")
    if folder is None and run is None:
        raise InputError(f"there is no model; expected --problem module:function, or a trained run such as {example}.")
    if folder is None or run is None:
        found = f"--run {run}" if folder is None else f"the folder {folder}"
        raise InputError(f"{found} is given alone; expected both, such as {example}.")
    from tacit._util.own_code import source_file
    from tacit.studies.trained import find_run, trained_problem

    results, spec = find_run(folder, run)
    for name, code in (spec.own_code or {}).items():
        print(f"imports {name} from {source_file(name)} (sha256 {code})")
    print(f"run {spec.hash}: {spec.model} on {spec.dataset}, seed {spec.seed}")
    return trained_problem(results, spec)


def _check_regime(posed: Problem, batch_size: int) -> None:
    """Refuse, before anything is measured, what would not fit into memory."""
    batches = posed.train_size // max(1, batch_size)
    numbers = sum(value.numel() for value in posed.parameters.values())
    needed = batches * REGIME_ROWS * 8 * numbers
    if needed > REGIME_BYTES:
        raise InputError(
            f"--regime holds some {REGIME_ROWS} gradients of every minibatch: {batches} minibatches of a model with "
            f"{numbers} parameters need {needed / 2**30:.0f} GiB; expected at most {REGIME_BYTES / 2**30:.0f}. "
            "Use a larger --batch-size, or no --regime."
        )


def _regime(posed: Problem, learning_rate: float, batch_size: int) -> str:
    import warnings

    from tacit.problem import Problem
    from tacit.theory import regime

    size = posed.train_size // batch_size * batch_size
    data = (posed.inputs[:size], posed.targets[:size])
    decay, dtype = posed.weight_decay, posed.dtype
    partition = Problem(posed.model, posed.loss_fn, data, batch_size=batch_size, weight_decay=decay, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about kinks: the report names them itself
        found = regime(partition, posed.parameters, learning_rate=learning_rate)
    return f"regime at ε = {learning_rate:g}, B = {batch_size}: {found}"


def _write(json: Path | None, text: str) -> None:
    from tacit._util.files import write_atomically

    if json is not None:
        write_atomically(json, text + "\n")
        print(f"wrote {json}")
