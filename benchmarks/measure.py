"""What per-example squared norms cost: Γ over many examples by several ways, as multiples of a plain gradient pass.

    python benchmarks/measure.py --json benchmarks/results/measure.json
    python benchmarks/measure.py --quick

Every way sees the same examples and gives Γ: `factors` is the pass inside `tacit.measure`, `measure` all of it with its
checks and self-test. The ways run in turns, round by round; a ratio is the median over rounds of a way's time over the
plain pass's time in the same round. Peak memory is what torch allocates on top of the model and the examples.

Two other libraries run beside it where they are installed; they need little of what they ask for, so

    pip install --no-deps --target peers opacus opt-einsum backpack-for-pytorch einops unfoldNd
    PYTHONPATH=peers python benchmarks/measure.py

They and vmap form example gradients, so they take smaller chunks (`vmap_chunk`); BackPACK's norms take the large ones.
Where a library is missing or refuses a model, the result says so. Two ways that disagree about Γ stop the run.
"""

from __future__ import annotations

import argparse
import copy
import importlib.metadata
import importlib.util
import json
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

import tacit
from tacit._util.provenance import provenance
from tacit._util.random_generators import generator
from tacit.bench.memory import peak_bytes, state_bytes
from tacit.bench.models import Workload
from tacit.diagnostics.per_example import ExampleGradients
from tacit.studies.train.models import mlp, wide_resnet

Way = Callable[[], float]


@dataclass(frozen=True)
class Case:
    name: str
    title: str
    examples: int
    chunk_size: int
    vmap_chunk: int
    limit: float  # what the project promises for the factors
    make: Callable[[int], tuple[Workload, str]]  # and what the examples are


def random_examples(count: int, *shape: int) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, *shape, generator=generator(0, "probe"))
    return inputs, torch.randint(10, (count,), generator=generator(0, "probe", 1))


def fashion(count: int) -> tuple[Workload, str]:
    """The MLP 784-512-512-512-10 on the first images of Fashion-MNIST."""
    from tacit.studies.data.load import load_fashion_mnist

    model = mlp([784, 512, 512, 512, 10], generator(0, "init"))
    try:
        data = load_fashion_mnist()
    except tacit.InputError as error:
        return Workload(model, *random_examples(count, 784)), f"random numbers: {error}"
    inputs, targets = (torch.from_numpy(part[:count].copy()) for part in (data.train_inputs, data.train_targets))
    return Workload(model, inputs, targets), "Fashion-MNIST"


def resnet(count: int) -> tuple[Workload, str]:
    """WRN-10-1 with SkipInit scalars at 0.5 on the first images of CIFAR-10, standardised per channel.

    At their initial value 0 the scalars would cut every branch off, and its gradients would be zeros.
    """
    from tacit.studies.data.datasets import FACTS
    from tacit.studies.data.load import load

    model = wide_resnet(10, 1, generator=generator(0, "init"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("scalar"):
                parameter.fill_(0.5)
    try:
        data, facts = load("cifar10"), FACTS["cifar10"]
    except tacit.InputError as error:
        return Workload(model, *random_examples(count, 3, 32, 32)), f"random numbers: {error}"
    mean, deviation = (torch.tensor(part).reshape(1, 3, 1, 1) for part in (facts.mean, facts.deviation))
    pixels = torch.from_numpy(data.train_inputs[:count].copy()).float() / 255
    return Workload(model, (pixels - mean) / deviation, torch.from_numpy(data.train_targets[:count].copy())), "CIFAR-10"


CASES = [
    Case("mlp-512", "MLP 784-512³-10", 4096, 256, 16, 1.5, fashion),
    Case("wrn-10-1", "WRN-10-1 SkipInit, 3x32x32", 4096, 64, 32, 2.5, resnet),
]
PEERS = {"opacus": ("opacus", "opacus"), "backpack": ("backpack", "backpack-for-pytorch")}  # module, distribution
AGREE = 1e-3  # relative, between ways of computing Γ in float32; a wrong way is off by a factor


def gamma(squares: float, mean: list[Tensor], count: int) -> float:
    """Γ = (1/N) Σ‖gⱼ‖² − ‖ḡ‖²."""
    return squares / count - sum(float(part.double().square().sum()) for part in mean)


def plain(work: Workload, case: Case) -> float:
    """A gradient pass and nothing else: ‖∇C‖², no Γ."""
    parameters = [*work.model.parameters()]
    total = [torch.zeros_like(parameter) for parameter in parameters]
    for x, y in zip(work.inputs.split(case.chunk_size), work.targets.split(case.chunk_size), strict=True):
        found = torch.autograd.grad(cross_entropy(work.model(x), y) * len(x), parameters)
        total = [left.add_(right) for left, right in zip(total, found, strict=True)]
    return sum(float((part / len(work.inputs)).double().square().sum()) for part in total)


def by_factors(engine: ExampleGradients) -> float:
    count = engine.problem.train_size
    squares, total = 0.0, {name: torch.zeros_like(value) for name, value in engine.problem.parameters.items()}
    for chunk in engine.chunks(torch.arange(count)):
        squares += float(chunk.squared_norms.sum())
        for name, part in chunk.gradient_sum.items():
            total[name].add_(part)
    return gamma(squares, [part / count for part in total.values()], count)


def by_vmap(work: Workload, case: Case) -> float:
    parameters = {name: value.detach() for name, value in work.model.named_parameters()}

    def loss(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(functional_call(work.model, values, (x.unsqueeze(0),)), y.unsqueeze(0))

    each = vmap(grad(loss), in_dims=(None, 0, 0))
    squares, total = 0.0, {name: torch.zeros_like(value) for name, value in parameters.items()}
    for x, y in zip(work.inputs.split(case.vmap_chunk), work.targets.split(case.vmap_chunk), strict=True):
        for name, rows in each(parameters, x, y).items():
            squares += float(rows.square().sum())
            total[name].add_(rows.sum(0))
    return gamma(squares, [part / len(work.inputs) for part in total.values()], len(work.inputs))


def by_opacus(work: Workload, case: Case) -> Way:
    from opacus import GradSampleModule

    wrapped = GradSampleModule(copy.deepcopy(work.model), loss_reduction="mean")

    def way() -> float:
        squares, total = 0.0, [torch.zeros_like(parameter) for parameter in wrapped.parameters()]
        for x, y in zip(work.inputs.split(case.vmap_chunk), work.targets.split(case.vmap_chunk), strict=True):
            wrapped.zero_grad()
            cross_entropy(wrapped(x), y).backward()
            for at, parameter in enumerate(wrapped.parameters()):
                squares += float(parameter.grad_sample.square().sum())
                total[at].add_(parameter.grad_sample.sum(0))
                parameter.grad_sample = None
        return gamma(squares, [part / len(work.inputs) for part in total], len(work.inputs))

    return way


def by_backpack(work: Workload, case: Case) -> Way:
    from backpack import backpack, extend
    from backpack.extensions import BatchL2Grad

    model, loss_fn = extend(copy.deepcopy(work.model)), extend(nn.CrossEntropyLoss())

    def way() -> float:
        squares, total = 0.0, [torch.zeros_like(parameter) for parameter in model.parameters()]
        for x, y in zip(work.inputs.split(case.chunk_size), work.targets.split(case.chunk_size), strict=True):
            model.zero_grad()
            with backpack(BatchL2Grad()):
                loss_fn(model(x), y).backward()
            missing = [name for name, parameter in model.named_parameters() if not hasattr(parameter, "batch_l2")]
            if missing:
                raise NotImplementedError(f"no norms for {', '.join(missing)}")
            for at, parameter in enumerate(model.parameters()):
                squares += float(parameter.batch_l2.sum()) * len(x) ** 2  # of the mean loss: gradients over len(x)
                total[at].add_(parameter.grad, alpha=len(x))
        return gamma(squares, [part / len(work.inputs) for part in total], len(work.inputs))

    return way


def ways(work: Workload, case: Case) -> tuple[dict[str, Way], dict[str, str]]:
    first = [[*range(min(32, len(work.inputs)))]]
    problem = tacit.Problem(work.model, cross_entropy, (work.inputs, work.targets), batches=first)
    engine = ExampleGradients(problem, chunk_size=case.chunk_size)

    def by_measure() -> float:
        seen = tacit.measure(problem, chunk_size=case.chunk_size)
        assert seen.gradient_covariance_trace is not None, str(seen.self_test)
        return seen.gradient_covariance_trace.value

    made: dict[str, Way] = {
        "plain": lambda: plain(work, case),
        "factors": lambda: by_factors(engine),
        "measure": by_measure,
        "vmap": lambda: by_vmap(work, case),
    }
    left_out = {}
    for name, build in (("opacus", by_opacus), ("backpack", by_backpack)):
        module, package = PEERS[name]
        if importlib.util.find_spec(module) is None:
            left_out[name] = f"not installed: pip install --no-deps --target peers {package}, then PYTHONPATH=peers"
            continue
        try:
            way = build(work, case)
            way()
            made[name] = way
        except Exception as error:  # another library's limits are a result, not a crash
            left_out[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]
    return made, left_out


def run(case: Case, *, rounds: int, examples: int) -> dict[str, Any]:
    work, data = case.make(examples)
    made, left_out = ways(work, case)
    values = {name: way() for name, way in made.items()}  # and a warm-up
    for name, value in values.items():
        if name != "plain" and not abs(value - values["factors"]) <= AGREE * abs(values["factors"]):
            raise SystemExit(f"{case.title}: Γ is {value:.6g} by {name} and {values['factors']:.6g} by factors")
    times: dict[str, list[float]] = {name: [] for name in made}
    for turn in range(rounds):
        order = list(made) if turn % 2 == 0 else list(made)[::-1]
        for name in order:
            start = time.perf_counter()
            made[name]()
            times[name].append(time.perf_counter() - start)
    found = {}
    for name, way in made.items():
        ratios = [spent / plain_time for spent, plain_time in zip(times[name], times["plain"], strict=True)]
        found[name] = {
            "seconds": statistics.median(times[name]),
            "ratio": statistics.median(ratios),
            "ratios": ratios,
            "peak_bytes": peak_bytes(work, way) - state_bytes(work),
            "gamma": None if name == "plain" else values[name],
        }
    return {
        "title": case.title, "data": data, "examples": examples, "chunk_size": case.chunk_size,
        "vmap_chunk": case.vmap_chunk, "rounds": rounds, "limit": case.limit,
        "kept": found["factors"]["ratio"] <= case.limit, "ways": found, "left_out": left_out,
    }  # fmt: skip


def show(case: Case, found: dict[str, Any]) -> None:
    print(f"\n{case.title} on {found['data']}: {found['examples']} examples in chunks of {case.chunk_size}")
    for name, entry in found["ways"].items():
        value = "" if entry["gamma"] is None else f"  Γ = {entry['gamma']:.6g}"
        print(f"  {name:<10} {entry['ratio']:6.2f} x  {entry['peak_bytes'] / 2**20:8.1f} MiB{value}")
    for name, why in found["left_out"].items():
        print(f"  {name:<10} left out: {why}")
    print(f"  promised: at most {case.limit:g} x: {'kept' if found['kept'] else 'broken'}", flush=True)


def peer_versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name, (_, package) in PEERS.items():
        try:
            found[name] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--quick", action="store_true", help="a sixteenth of the examples, three rounds")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", choices=[case.name for case in CASES], default=None)
    chosen = parser.parse_args()
    if chosen.rounds < 1 or chosen.threads < 1:
        raise SystemExit(f"--rounds {chosen.rounds} --threads {chosen.threads}; expected at least 1 of each")
    if chosen.json is not None and not chosen.json.resolve().parent.is_dir():
        raise SystemExit(f"the folder of {chosen.json} does not exist; make it first")
    torch.set_num_threads(chosen.threads)
    # About hooks on models whose inputs need no gradient, and modules that BackPACK does not know: see `left_out`.
    warnings.filterwarnings("ignore", message="Full backward hook|Extension saving")
    came_from = provenance()
    came_from = {**came_from, "versions": {**came_from["versions"], **peer_versions()}}
    result: dict[str, Any] = {"threads": chosen.threads, "cases": {}, **came_from}
    for case in CASES:
        if chosen.only not in (None, case.name):
            continue
        examples = case.examples // 16 if chosen.quick else case.examples
        result["cases"][case.name] = run(case, rounds=min(3, chosen.rounds) if chosen.quick else chosen.rounds,
                                         examples=examples)  # fmt: skip
        show(case, result["cases"][case.name])
    if chosen.json is not None:
        temporary = chosen.json.with_suffix(".writing")
        temporary.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
        temporary.replace(chosen.json)


if __name__ == "__main__":
    main()
