"""What per-example squared norms cost: Γ over many examples by several ways, as multiples of a plain gradient pass.

    python benchmarks/measure.py --json benchmarks/results/measure.json
    python benchmarks/measure.py --quick

Every way sees the same examples in the same chunks and gives Γ and ‖∇C‖². The ways run in turns, round by round; a
ratio is the median over rounds of a way's time over the plain pass's time in the same round. Peak memory is what torch
allocates on top of the model and the examples. Ways of other libraries run where those are installed (`opacus`,
`backpack-for-pytorch`), else the result says that they were left out.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

import tacit
from tacit._random import generator
from tacit.bench.memory import peak_bytes
from tacit.bench.models import Workload
from tacit.diagnostics.per_example import ExampleGradients
from tacit.studies.models import mlp, wide_resnet
from tacit.studies.provenance import provenance

Way = Callable[[], float]


@dataclass(frozen=True)
class Case:
    name: str
    title: str
    examples: int
    chunk_size: int
    vmap_chunk: int
    limit: float  # what the project promises for the factors
    make: Callable[[int], Workload]


def fashion(examples: int) -> Workload:
    """The MLP 784-512-512-512-10 on Fashion-MNIST, or on random numbers where the files are not."""
    try:
        from tacit.studies.fashion_mnist import load_fashion_mnist

        data = load_fashion_mnist()
        inputs, targets = torch.from_numpy(data.train_inputs[:examples].copy()), torch.from_numpy(data.train_targets)
    except tacit.InputError:
        inputs = torch.randn(examples, 784, generator=generator(0, "probe"))
        targets = torch.randint(10, (examples,), generator=generator(0, "probe", 1))
    return Workload(mlp([784, 512, 512, 512, 10], generator(0, "init")), inputs, targets[:examples].clone())


def resnet(examples: int) -> Workload:
    """WRN-10-1 with SkipInit scalars at 0.5 on images of CIFAR-10's shape: random pixels cost what real ones cost."""
    model = wide_resnet(10, 1, generator=generator(0, "init"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("scalar"):
                parameter.fill_(0.5)
    images = torch.randn(examples, 3, 32, 32, generator=generator(0, "probe"))
    return Workload(model, images, torch.randint(10, (examples,), generator=generator(0, "probe", 1)))


CASES = [
    Case("mlp-512", "MLP 784-512³-10, Fashion-MNIST", 4096, 256, 64, 1.5, fashion),
    Case("wrn-10-1", "WRN-10-1 SkipInit, 3x32x32", 1024, 64, 32, 2.5, resnet),
]


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
            for at, parameter in enumerate(model.parameters()):
                squares += float(parameter.batch_l2.sum()) * len(x) ** 2  # of the mean loss: gradients over len(x)
                total[at].add_(parameter.grad, alpha=len(x))
        return gamma(squares, [part / len(work.inputs) for part in total], len(work.inputs))

    return way


def ways(work: Workload, case: Case) -> tuple[dict[str, Way], dict[str, str]]:
    problem = tacit.Problem(work.model, cross_entropy, (work.inputs, work.targets), batches=[[*range(32)]])
    engine = ExampleGradients(problem, chunk_size=case.chunk_size)
    made: dict[str, Way] = {
        "plain": lambda: plain(work, case),
        "factors": lambda: by_factors(engine),
        "vmap": lambda: by_vmap(work, case),
    }
    left_out = {}
    for name, package, build in (("opacus", "opacus", by_opacus), ("backpack", "backpack", by_backpack)):
        if importlib.util.find_spec(package) is None:
            left_out[name] = "not installed"
            continue
        try:
            way = build(work, case)
            way()
            made[name] = way
        except Exception as error:  # another library's limits are a result, not a crash
            left_out[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
    return made, left_out


def run(case: Case, *, rounds: int, examples: int) -> dict[str, Any]:
    work = case.make(examples)
    made, left_out = ways(work, case)
    values = {name: way() for name, way in made.items()}  # and a warm-up
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
        held = sum(t.numel() * t.element_size() for t in (*work.model.parameters(), work.inputs, work.targets))
        found[name] = {
            "seconds": statistics.median(times[name]),
            "ratio": statistics.median(ratios),
            "ratios": ratios,
            "peak_bytes": peak_bytes(work, way) - held,
            "gamma": None if name == "plain" else values[name],
        }
    return {
        "title": case.title, "examples": examples, "chunk_size": case.chunk_size, "vmap_chunk": case.vmap_chunk,
        "rounds": rounds, "limit": case.limit, "kept": found["factors"]["ratio"] <= case.limit, "ways": found,
        "left_out": left_out,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--quick", action="store_true", help="an eighth of the examples, three rounds")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    if chosen.json is not None and not chosen.json.resolve().parent.is_dir():
        raise SystemExit(f"the folder of {chosen.json} does not exist; make it first")
    torch.set_num_threads(chosen.threads)
    result: dict[str, Any] = {"threads": chosen.threads, "cases": {}, **provenance()}
    for case in CASES:
        examples = case.examples // 8 if chosen.quick else case.examples
        found = run(case, rounds=3 if chosen.quick else chosen.rounds, examples=examples)
        result["cases"][case.name] = found
        print(f"\n{case.title}: {examples} examples in chunks of {case.chunk_size}")
        for name, entry in found["ways"].items():
            value = "" if entry["gamma"] is None else f"  Γ = {entry['gamma']:.6g}"
            print(f"  {name:<10} {entry['ratio']:6.2f} x  {entry['peak_bytes'] / 2**20:8.1f} MiB{value}")
        for name, why in found["left_out"].items():
            print(f"  {name:<10} left out: {why}")
    if chosen.json is not None:
        temporary = chosen.json.with_suffix(".writing")
        temporary.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
        temporary.replace(chosen.json)


if __name__ == "__main__":
    main()
