"""What the paper's experiments need on GPUs of a given peak: operations and kernels counted, times derived.

    python benchmarks/paper_scale.py --json benchmarks/results/paper_scale.json
    python benchmarks/paper_scale.py --tflops 20 100 --price 2.0

Counted here, on the CPU: floating-point operations (torch.utils.flop_counter) and calls into torch's library of one
plain and one penalised update, of one evaluation and of C_reg, for every model and batch size in studies/paper, by the
code that trains them. A whole run is the sum over its updates and evaluations.

Assumed, each an argument: the share of its peak that a kernel reaches (`--kernel-share`), the time to launch one
(`--launch-microseconds`), bandwidth and size of a GPU's memory, a price per hour. An update alone takes the longest of
computing, reading and writing its tensors once per kernel, and launching. Runs that are packed onto one GPU launch
beside each other: then an update costs what it computes, or its part of the launches if too few runs fit.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from tacit._util.provenance import provenance
from tacit.studies.cost import operations
from tacit.studies.data.datasets import FACTS
from tacit.studies.describe.library import library
from tacit.studies.describe.spec import RunSpec
from tacit.studies.train import program
from tacit.studies.train.operations import count
from tacit.studies.train.packing import trains_alone

HOUR = 3600.0
EVALUATED = 50  # rows of the forward pass that is counted; operations are proportional to rows
VIEWS = (  # calls that launch nothing
    "view", "reshape", "t.", "transpose", "permute", "expand", "slice", "select", "detach", "alias", "squeeze",
    "as_strided", "unbind", "split",
)  # fmt: skip
MOST_PACKED = 16  # processes on one GPU: beyond, contexts and switching are not free any more


@dataclass(frozen=True)
class Work:
    """What one call did."""

    flop: float
    kernels: int
    bytes: float  # that kernels read and write


class _Kernels(TorchDispatchMode):
    """Counts calls that compute something, and the bytes of the tensors that they read and make; views do neither."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.bytes = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not (func._schema.name.removeprefix("aten::") + ".").startswith(VIEWS):
            self.count += 1
            tensors = [each for each in tree_leaves((args, kwargs, result)) if isinstance(each, torch.Tensor)]
            self.bytes += sum(each.numel() * each.element_size() for each in tensors)
        return result


def _in_place_product(_: Any, left: Any, right: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    """`baddbmm_`, which torch's own counter leaves out: (b, n, m) times (b, m, p)."""
    batch, rows, inner = left
    return 2 * batch * rows * inner * right[2]


IN_PLACE = {torch.ops.aten.baddbmm_: _in_place_product}


def counted(call: Callable[[], object]) -> Work:
    """Operations and kernels of one call."""
    with FlopCounterMode(display=False, custom_mapping=IN_PLACE) as flop:
        call()
    with _Kernels() as kernels:
        call()
    return Work(float(flop.get_total_flops()), kernels.count, float(kernels.bytes))


# -- one update of every kind -----------------------------------------------------------------------------------------
Kind = tuple[str, int, int, int, bool]  # model, depth, width, batch size, penalised


def kind(run: RunSpec) -> Kind:
    return run.model, run.depth, run.width, run.batch_size, run.strength > 0


def name_of(run: RunSpec) -> str:
    return f"WRN-{run.depth}-{run.width}" if run.model == "wide_resnet" else f"MLP {run.depth}x{run.width}"


def work_of(run: RunSpec) -> dict[str, Work]:
    """An update, an evaluation of `EVALUATED` rows and a minibatch of C_reg, by the program that trains the run."""
    facts = FACTS[run.dataset]
    models = program.make([run], facts, device=torch.device("cpu"), dtype=torch.float32)
    draws = torch.Generator().manual_seed(0)
    inputs = torch.randn(max(run.batch_size, EVALUATED), *facts.shape, generator=draws)
    labels = torch.randint(facts.classes, (run.batch_size,), generator=draws)
    minibatch = inputs[: run.batch_size]
    models.update(minibatch, labels, rates=[run.learning_rate])  # the first one checks the method
    return {
        "update": counted(lambda: models.update(minibatch, labels, rates=[run.learning_rate])),
        "evaluation": counted(lambda: models.outputs(inputs[:EVALUATED])),
        "c_reg": counted(lambda: models.squared_gradient_norms(minibatch, labels)),
    }


def flop_of(run: RunSpec, work: dict[str, Work]) -> float:
    """Operations of a whole run: updates, evaluations on training and test examples, C_reg at the end."""
    test = run.test_size or FACTS[run.dataset].test_size
    return (
        run.total_updates * work["update"].flop
        + run.evaluations * (run.train_size + test) / EVALUATED * work["evaluation"].flop
        + run.batches_per_epoch * work["c_reg"].flop
    )


# -- a GPU ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Gpu:
    """A device, and what is assumed of it."""

    tflops: float
    kernel_share: float
    launch_seconds: float
    bandwidth: float  # bytes per second
    memory: float  # bytes

    def alone(self, work: Work) -> float:
        """Seconds of one update when nothing else uses the GPU."""
        return max(self._computing(work), work.kernels * self.launch_seconds)

    def packed(self, work: Work, runs: int) -> float:
        """Seconds of the GPU for one update when `runs` runs share it."""
        return max(self._computing(work), work.kernels * self.launch_seconds / runs)

    def room(self, run: RunSpec, work: Work) -> int:
        """Runs to pack: as many as hide the launches, if they fit into memory."""
        wanted = math.ceil(work.kernels * self.launch_seconds / self._computing(work))
        return max(1, min(wanted, int(self.memory // memory_of(run)), MOST_PACKED))

    def _computing(self, work: Work) -> float:
        return max(work.flop / (self.tflops * 1e12 * self.kernel_share), work.bytes / self.bandwidth)


CONTEXT = 0.5e9  # bytes that a process needs on a GPU before it holds a tensor


def memory_of(run: RunSpec) -> float:
    """Bytes of one run on a GPU: parameters five times (gradients and both directions of a penalised step), images,
    activations of a minibatch six times (they, their gradients, the derivatives of both, two more in a block), and the
    process's own."""
    counts, facts = count(run), FACTS[run.dataset]
    data = (run.train_size + (run.test_size or facts.test_size)) * facts.features
    return CONTEXT + 4.0 * (5 * counts.parameters + 6 * run.batch_size * counts.activations) + data


def checkpoint_bytes(run: RunSpec) -> float:
    return 4.0 * count(run).parameters


def row_bytes(run: RunSpec) -> float:
    """At most 128 bytes per evaluation and about 1,500 for the rest: see `spec.MOST_EVALUATIONS`."""
    return 1500.0 + 128.0 * run.evaluations


def plan(runs: Sequence[RunSpec], works: dict[Kind, dict[str, Work]], gpu: Gpu, *, price: float) -> dict[str, Any]:
    """What some runs need on one GPU of a kind, each alone or packed."""
    alone = packed = 0.0
    longest, most = 0.0, 0
    for run in runs:
        work = works[kind(run)]
        updates = flop_of(run, work) / work["update"].flop  # evaluations and C_reg as so many updates more
        room = gpu.room(run, work["update"])
        alone += updates * gpu.alone(work["update"])
        packed += updates * gpu.packed(work["update"], room)
        longest, most = max(longest, updates * gpu.alone(work["update"])), max(most, room)
    return {
        "tflops": gpu.tflops, "hours_alone": alone / HOUR, "hours_packed": packed / HOUR, "most_packed": most,
        "hours_of_longest_run": longest / HOUR, "cost_alone": alone / HOUR * price,
        "cost_packed": packed / HOUR * price,
    }  # fmt: skip


def figures() -> dict[str, list[RunSpec]]:
    """The distinct runs that each figure of the paper reads."""
    found: dict[str, dict[str, RunSpec]] = {}
    for study in library(None, "paper").values():
        for figure in study.figures:
            found.setdefault(figure, {}).update({run.hash: run for run in study.runs})
    return {figure: list(runs.values()) for figure, runs in sorted(found.items())}


def studies() -> dict[str, list[RunSpec]]:
    return {name: list(study.runs) for name, study in library(None, "paper").items()}


def entry(
    runs: Sequence[RunSpec], works: dict[Kind, dict[str, Work]], gpus: Iterable[Gpu], *, price: float
) -> dict[str, Any]:
    return {
        "runs": len(runs),
        "updates": sum(run.total_updates for run in runs),
        "flop": sum(flop_of(run, works[kind(run)]) for run in runs),
        "flop_by_formula": sum(map(operations, runs)),
        "megabytes_of_rows": sum(map(row_bytes, runs)) / 1e6,
        "megabytes_of_a_checkpoint": max(map(checkpoint_bytes, runs)) / 1e6,
        "gpus": [plan(runs, works, gpu, price=price) for gpu in gpus],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tflops", type=float, nargs="+", default=[20.0, 100.0])
    parser.add_argument("--kernel-share", type=float, default=0.3, help="share of the peak that a kernel reaches")
    parser.add_argument("--launch-microseconds", type=float, default=5.0, help="between two kernels of one process")
    parser.add_argument("--bandwidth", type=float, default=1.5, help="of its memory, in terabytes per second")
    parser.add_argument("--gigabytes", type=float, default=40.0, help="memory of a GPU")
    parser.add_argument("--price", type=float, default=2.0, help="of a GPU for an hour, in any currency")
    options = parser.parse_args(arguments)
    gpus = [
        Gpu(
            tflops,
            options.kernel_share,
            options.launch_microseconds * 1e-6,
            options.bandwidth * 1e12,
            options.gigabytes * 1e9,
        )
        for tflops in options.tflops
    ]
    by_study = studies()
    kinds = {kind(run): run for runs in by_study.values() for run in runs}
    works = {each: work_of(run) for each, run in sorted(kinds.items())}
    steps = [
        {
            "model": name_of(run), "batch_size": run.batch_size, "penalised": run.strength > 0,
            "gflop": works[each]["update"].flop / 1e9, "kernels": works[each]["update"].kernels,
            "megabytes_moved": works[each]["update"].bytes / 1e6,
            "gflop_by_formula": _formula(run) / 1e9, "gigabytes": memory_of(run) / 1e9,
            "trains_alone": trains_alone(run),
            "gpus": [
                {"tflops": gpu.tflops, "alone_ms": 1e3 * gpu.alone(works[each]["update"]),
                 "packed": gpu.room(run, works[each]["update"]),
                 "packed_ms": 1e3 * gpu.packed(works[each]["update"], gpu.room(run, works[each]["update"]))}
                for gpu in gpus
            ],
        }
        for each, run in sorted(kinds.items())
    ]  # fmt: skip
    everything = list({run.hash: run for runs in by_study.values() for run in runs}.values())
    result = {
        "kernel_share": options.kernel_share, "launch_microseconds": options.launch_microseconds,
        "bandwidth": options.bandwidth, "gigabytes": options.gigabytes, "price": options.price, "steps": steps,
        "studies": {name: entry(runs, works, gpus, price=options.price) for name, runs in by_study.items()},
        "figures": {name: entry(runs, works, gpus, price=options.price) for name, runs in figures().items()},
        "all": entry(everything, works, gpus, price=options.price), **provenance(),
    }  # fmt: skip
    for step in steps:
        print(
            f"{step['model']:12} B={step['batch_size']:<4} {'penalised' if step['penalised'] else 'plain':9} "
            f"{step['gflop']:8.2f} GFLOP (formula {step['gflop_by_formula']:.2f}) in {step['kernels']} kernels"
        )
    for name, found in {**result["studies"], "all": result["all"]}.items():
        times = ", ".join(
            f"{gpu['tflops']:g} TFLOP/s: {gpu['hours_alone']:,.0f} h, packed {gpu['hours_packed']:,.0f} h"
            for gpu in found["gpus"]
        )
        print(f"{name:24} {found['runs']:5} runs {found['flop']:.2e} FLOP   {times}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


def _formula(run: RunSpec) -> float:
    """Operations of one update by the formula of `tacit figures`: its cost less that of a run without updates."""
    one = run.model_copy(update={"epochs": None, "updates": run.inner_steps, "evaluations": 1})
    two = run.model_copy(update={"epochs": None, "updates": 2 * run.inner_steps, "evaluations": 1})
    return (operations(two) - operations(one)) / run.inner_steps


if __name__ == "__main__":
    main()
