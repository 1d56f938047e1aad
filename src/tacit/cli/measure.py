"""`tacit measure` and `tacit advise`: what SGD regularizes in a model, and what another batch size would need."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacit._errors import InputError
from tacit.cli._output_file import check_output_file

if TYPE_CHECKING:
    from tacit.advice import Advice
    from tacit.diagnostics import Measurement
    from tacit.problem import Problem

REGIME_ROWS = 8  # gradients in float64 that the regime report holds for each minibatch at its peak
REGIME_BYTES = 4 * 2**30
MODEL_COPIES = 3  # parameters, their gradient, and the copy that a Problem works on
MOST_LAYERS = 1000  # beyond, the autograd graph alone takes longer than anybody waits
MODELS = ("mlp", "wide_resnet")
OF_A_RUN = ("dataset", "model", "width", "depth", "train_size", "weights", "problem")  # what --run says by itself
Folder = Annotated[Path | None, typer.Argument(help="A folder of results, for --run.", show_default=False)]
Run = Annotated[
    str | None,
    typer.Option(metavar="HASH", help="A trained run of FOLDER, by the first digits of its hash; needs kept weights."),
]
Dataset = Annotated[
    str, typer.Option(help="mnist1d, mnist1d_16k, fashion_mnist or cifar10, as studies standardise it.")
]
Model = Annotated[str, typer.Option(help="mlp, or wide_resnet for images.")]
Width = Annotated[int, typer.Option(help="Width of the hidden layers, or the factor k of a Wide-ResNet.")]
Depth = Annotated[int, typer.Option(help="Number of hidden layers; 10, 16, … for a Wide-ResNet.")]
TrainSize = Annotated[int | None, typer.Option(help="N: use the first N training examples.")]
Weights = Annotated[Path | None, typer.Option(help="A safetensors file with the parameters; else initialisation.")]
Custom = Annotated[str | None, typer.Option("--problem", help="module:function that returns a tacit.Problem instead.")]
Sample = Annotated[int | None, typer.Option(help="Draw so many examples; without it all are used, exactly.")]
Confidence = Annotated[float, typer.Option(help="Of the intervals.")]
Seed = Annotated[int, typer.Option(help="Of the initialisation and of the sample.")]
Json = Annotated[Path | None, typer.Option("--json", help="Also write every number to this file.")]


def register(app: typer.Typer) -> None:
    app.command("measure")(measure)
    app.command("advise")(advise)


def measure(
    context: typer.Context,
    folder: Folder = None,
    run: Run = None,
    dataset: Dataset = "mnist1d",
    model: Model = "mlp",
    width: Width = 64,
    depth: Depth = 3,
    train_size: TrainSize = None,
    weights: Weights = None,
    problem: Custom = None,
    batch_size: Annotated[list[int] | None, typer.Option(help="B; may be repeated.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="ε: adds ε·λ_max, which costs tens of passes.")] = None,
    sample: Sample = None,
    confidence: Confidence = 0.95,
    seed: Seed = 0,
    json: Json = None,
) -> None:
    """C_reg, ‖∇C‖², Γ and the noise scale of a model, each with its interval. Trains nothing.

    Examples:

        tacit measure --dataset mnist1d --model mlp --batch-size 16 --batch-size 256

        tacit measure --weights run.safetensors --sample 512 --learning-rate 0.125

        tacit measure --problem mypackage.mymodule:make_problem --json seen.json

        tacit measure runs/stripes --run 3f2a
    """
    check_output_file("--json", json)
    if run is not None or folder is not None:
        posed = _trained(context, folder, run)
    else:
        posed = _problem(dataset, model, width, depth, train_size, weights, problem, seed)
    seen = _measure(posed, batch_size, learning_rate, sample, confidence, seed)
    print(seen)
    _write(json, seen.to_json())


def advise(
    learning_rate: Annotated[float, typer.Option(help="ε now.")],
    batch_size: Annotated[int, typer.Option(help="B now.")],
    new_batch_size: Annotated[int | None, typer.Option(help="B' wanted.")] = None,
    new_learning_rate: Annotated[float | None, typer.Option(help="ε' wanted.")] = None,
    micro_batch_size: Annotated[int | None, typer.Option(help="b of the penalty; by default B.")] = None,
    momentum: Annotated[float, typer.Option(help="β of SGD, before and after.")] = 0.0,
    nesterov: Annotated[bool, typer.Option("--nesterov", help="The momentum is Nesterov's.")] = False,
    every: Annotated[int, typer.Option(min=1, help="k: the penalty on every k-th step.")] = 1,
    dataset: Dataset = "mnist1d",
    model: Model = "mlp",
    width: Width = 64,
    depth: Depth = 3,
    train_size: TrainSize = None,
    weights: Weights = None,
    problem: Custom = None,
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

        tacit advise --learning-rate 0.125 --batch-size 16 --new-batch-size 256

        tacit advise --learning-rate 0.125 --batch-size 16 --new-learning-rate 0.5 --weights run.safetensors

        tacit advise --problem mymodule:make_problem --learning-rate 0.1 --batch-size 32 --new-batch-size 1024
    """
    check_output_file("--json", json)
    from tacit.advice import match
    from tacit.advice.checks import check_match, check_problem
    from tacit.advice.optimizers import optimizer_settings

    optimizer_settings(None, momentum, nesterov)
    posed = _problem(dataset, model, width, depth, train_size, weights, problem, seed)
    if regime:
        _check_regime(posed, batch_size)
    check_match(
        posed.train_size, learning_rate, batch_size, new_batch_size, new_learning_rate, micro_batch_size
    )  # before measuring, which may take a while
    check_problem(posed)
    sizes = [batch_size] if new_batch_size is None else [batch_size, new_batch_size]
    seen = _measure(posed, sizes, learning_rate, sample, confidence, seed, curvature=stability)
    advice = match(
        seen,
        learning_rate=learning_rate,
        batch_size=batch_size,
        new_batch_size=new_batch_size,
        new_learning_rate=new_learning_rate,
        micro_batch_size=micro_batch_size,
        momentum=momentum,
        nesterov=nesterov,
        every=every,
    )
    print(advice)
    _print_price(advice, posed, wanted=price)
    if regime:
        print(_regime(posed, learning_rate, batch_size))
    _write(json, advice.to_json())


def _print_price(advice: Advice, posed: Problem, *, wanted: bool) -> None:
    """What the advised penalty costs, where there is one."""
    size = advice.new_batch_size
    penalised = advice.decided and advice.strength > 0
    if wanted and penalised and size % advice.micro_batch_size == 0:
        print(advice.price(posed.model, posed.loss_fn, posed.inputs[:size], posed.targets[:size]))


def _trained(context: typer.Context, folder: Path | None, run: str | None) -> Problem:
    """A run as it was trained. Its model and data are in its row: options that say otherwise are refused."""
    if folder is None or run is None:
        found = f"--run {run}" if folder is None else f"the folder {folder}"
        raise InputError(f"{found} is given alone; expected both, such as `tacit measure runs/stripes --run 3f2a`.")
    given = [name for name in OF_A_RUN if _was_given(context, name)]
    if given:
        option = f"--{given[0].replace('_', '-')}"
        raise InputError(f"{option} is given beside --run {run}, which has its own model and data; leave {option} out.")
    from tacit._own_code import source_file
    from tacit.studies.trained import find_run, trained_problem

    results, spec = find_run(folder, run)
    for name, code in (spec.own_code or {}).items():
        print(f"imports {name} from {source_file(name)} (sha256 {code})")
    print(f"run {spec.hash}: {spec.model} on {spec.dataset}, seed {spec.seed}")
    return trained_problem(results, spec)


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _measure(
    posed: Problem,
    batch_size: list[int] | None,
    learning_rate: float | None,
    sample: int | None,
    confidence: float,
    seed: int,
    *,
    curvature: bool | None = None,
) -> Measurement:
    from tacit.diagnostics import measure

    return measure(
        posed,
        batch_size=batch_size or None,
        learning_rate=learning_rate,
        sample=sample,
        confidence=confidence,
        seed=seed,
        curvature=curvature,
    )


def _problem(
    dataset: str,
    model: str,
    width: int,
    depth: int,
    train_size: int | None,
    weights: Path | None,
    custom: str | None,
    seed: int,
) -> Problem:
    if custom is not None:
        from tacit.cli._imported import imported

        return imported(custom)()
    from tacit.studies.data.datasets import FACTS

    dataset = dataset.replace("-", "_")
    if model not in MODELS:
        raise InputError(
            f"--model {model!r} is unknown; use {' or '.join(MODELS)}, or --problem module:function for your own."
        )
    if width < 1 or depth < 0:
        raise InputError(f"--width {width} --depth {depth}; expected a width of at least 1 and a depth of at least 0.")
    if dataset not in FACTS:
        raise InputError(f"--dataset {dataset!r} is unknown; use one of {', '.join(FACTS)}.")
    facts = FACTS[dataset]
    if model == "wide_resnet" and len(facts.shape) != 3:
        raise InputError(
            f"--model wide_resnet is for images; {dataset} has none. Use --model mlp or --dataset cifar10."
        )
    size = facts.train_size if train_size is None else train_size
    if not 2 <= size <= facts.train_size:
        raise InputError(f"--train-size {size}; expected 2 to {facts.train_size} for {dataset}.")
    if model == "mlp":
        _check_model_fits(facts.features, width, depth)
    import torch
    from torch.nn import functional as F

    from tacit._random import generator
    from tacit.problem import Problem
    from tacit.studies.data.load import load
    from tacit.studies.train.examples import standardised
    from tacit.studies.train.models import mlp, wide_resnet

    data, draws = load(dataset), generator(seed, "init")
    inputs = standardised(data.train_inputs[:size], facts).between(0, size)
    targets = torch.from_numpy(data.train_targets[:size].copy())
    if model == "mlp":
        inputs = inputs.flatten(1)
        network: torch.nn.Module = mlp([facts.features, *[width] * depth, facts.classes], draws)
    else:
        inputs = inputs.contiguous()
        network = wide_resnet(depth, width, classes=facts.classes, channels=facts.shape[0], generator=draws)
    if weights is not None:
        _load(network, weights)
    return Problem(network, F.cross_entropy, (inputs, targets), batch_size=min(32, size), remainder="drop")


def _check_model_fits(inputs: int, width: int, depth: int) -> None:
    """Refuse a model that the machine cannot hold, before torch runs out of memory."""
    import os

    hidden = (inputs + 1) * width + (depth - 1) * (width + 1) * width if depth else 0
    numbers = hidden + ((width if depth else inputs) + 1) * 10
    needed = MODEL_COPIES * 4 * numbers
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None
    if available is not None and needed > available:
        raise InputError(
            f"--width {width} --depth {depth} make a model of {numbers:.2g} parameters, which needs "
            f"{needed / 2**30:,.0f} GiB to measure; this machine has {available / 2**30:.0f}. Use a smaller one."
        )
    if depth > MOST_LAYERS:
        raise InputError(f"--depth {depth}; expected at most {MOST_LAYERS} hidden layers.")


def _load(network: object, weights: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file
    from torch import nn

    assert isinstance(network, nn.Module)
    try:
        found = load_file(weights)
        network.load_state_dict(found)
    except FileNotFoundError as error:
        raise InputError(f"--weights {weights} does not exist; expected a safetensors file.") from error
    except (OSError, SafetensorError) as error:
        raise InputError(f"--weights {weights} cannot be read: {error}; expected a safetensors file.") from error
    except RuntimeError as error:
        expected = ", ".join(f"{name} {tuple(value.shape)}" for name, value in network.state_dict().items())
        raise InputError(f"--weights {weights} does not fit the model; expected {expected}.") from error


def _check_regime(posed: Problem, batch_size: int) -> None:
    """Refuse, before anything is measured, what would not fit into memory."""
    batches = posed.train_size // max(1, batch_size)
    numbers = sum(value.numel() for value in posed.parameters.values())
    each = REGIME_ROWS * 8 * numbers
    if batches * each > REGIME_BYTES:
        most = REGIME_BYTES // each * batch_size
        remedy = f"--train-size {most}, a larger --batch-size, or no --regime" if most else "no --regime"
        raise InputError(
            f"--regime holds some {REGIME_ROWS} gradients of every minibatch: {batches} minibatches of a model with "
            f"{numbers} parameters need {batches * each / 2**30:.0f} GiB; expected at most {REGIME_BYTES / 2**30:.0f}. "
            f"Use {remedy}."
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
    from tacit._files import write_atomically

    if json is not None:
        write_atomically(json, text + "\n")
        print(f"wrote {json}")
