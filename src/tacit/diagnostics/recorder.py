"""`Recorder`: the measurements inside a running training loop, without changing it by a bit."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tacit import sinks
from tacit._util.errors import InputError
from tacit._util.gradient_sources import last_call
from tacit._util.tree import Tree
from tacit.diagnostics.measurement import Measurement
from tacit.diagnostics.measuring import measure
from tacit.diagnostics.norm_layers import NormLayerGradients, norms_row, step_moments

When = int | Callable[[int], bool]
BELOW_ZERO = (
    "the difference of two noisy norms: ‖∇C‖² is too small to be seen with this window; average rows, or widen it"
)


class Recorder:
    """Rows about the gradient noise, from gradients that training computes anyway, and full measurements on request.

    Call it after `backward` and before `optimizer.step`. From a step at which `every` says so, it watches `.grad` for
    `window` steps: minibatch gradients of size B, and their mean, a gradient of size window·B. From the squared norms
    of the two sizes (Eq. 22 with B and window·B)

        Γ = (N−1)/N (q_B − q_mean) / (1/B − 1/(window·B)),   ‖∇C‖² = q_B − (1/B − 1/N) N/(N−1) Γ,   C_reg(B) = q_B/4

    No extra pass, one extra gradient in memory. Cheap and rough: parameters move within the window, which a full
    measurement (`full`: at which steps; it needs `loss_fn` and `dataset`, and takes `sample` examples; `curvature` adds
    λ_max) does not suffer. The last one is `measurement`, ready for `tacit.match`.

    `layers="norms"` reads per-example gradients of norm layers in the window's backward passes instead: no copy of the
    gradient, no error from moving parameters, and an interval. It is the noise scale of these parameters alone: in two
    small transformers 0.6 to 1.4 and 0.2 to 0.7 times that of all. The loss must be a mean over `batch_size` examples
    along the first axis. It counts as given to `backward`: scaled by c (GradScaler, also after `unscale_`), Γ and
    ‖∇C‖² of the row are c² times as large, and the noise scale is the same while c does not change in a window.

    Steps of a `GradientPenalty` that carried the penalty are left out of the window: their gradients are not those of
    Ĉ. Where all steps carry it, there are full measurements only.

    Rows go to `rows`, to the JSON Lines file `path`, and to `writer`: a `SummaryWriter` of TensorBoard, or another of
    `tacit.sinks`. Training is bitwise the same with and without it: it only reads gradients, works on copies of the
    parameters, and puts random generators back.

    >>> model = nn.Linear(2, 1)
    >>> recorder = Recorder(model, batch_size=4, train_size=8, every=10, window=2)
    >>> for _ in range(2):
    ...     model(torch.randn(4, 2)).square().mean().backward()
    ...     recorder.after_backward()
    >>> recorder.rows[0]["step"]
    1
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        batch_size: int,
        train_size: int,
        every: When = 100,
        window: int = 8,
        layers: Literal["all", "norms"] = "all",
        full: When | None = None,
        loss_fn: Callable[[Tensor, Tensor], Tensor] | None = None,
        dataset: Any = None,
        sample: int | None = 512,
        curvature: bool = False,
        path: str | Path | None = None,
        writer: Any = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"model is a {type(model).__name__}; expected a torch module.")
        if not 1 <= batch_size <= train_size:
            raise InputError(f"batch_size={batch_size} with train_size={train_size}; expected 1 to {train_size}.")
        if window < 2:
            raise InputError(f"window={window}; expected at least 2 steps: two batch sizes are needed.")
        if layers not in ("all", "norms"):
            raise InputError(f"layers={layers!r}; expected 'all' or 'norms'.")
        if layers == "norms" and batch_size < 2:
            raise InputError("batch_size=1 with layers='norms'; expected 2 at least: one example has no variance.")
        if layers == "all" and window * batch_size > train_size:
            most = train_size // batch_size
            remedy = f"Use window={most}." if most >= 2 else "Use smaller batches: these leave no noise to measure."
            raise InputError(
                f"window={window} steps of {batch_size} see more than the {train_size} examples; expected minibatches "
                f"that can be disjoint. {remedy}"
            )
        for name, when in (("every", every), ("full", full)):
            if when is not None and not callable(when) and when < 1:
                raise InputError(f"{name}={when}; expected at least 1, or a function of the step.")
        if not callable(every) and every < window:
            raise InputError(f"every={every} is shorter than window={window}; expected windows that do not overlap.")
        if full is not None and (loss_fn is None or dataset is None):
            raise InputError("full measurements need loss_fn and dataset; expected both.")
        if path is not None and not Path(path).resolve().parent.is_dir():
            raise InputError(f"the folder of {str(path)!r} does not exist; make it first.")
        self.model, self.batch_size, self.train_size = model, batch_size, train_size
        self.every, self.window, self.full = every, window, full
        self.loss_fn, self.dataset, self.sample = loss_fn, dataset, sample
        self.path = None if path is None else Path(path)
        self.writer = writer
        self.rows: list[dict[str, Any]] = []
        self.steps = 0
        self._sum: Tree | None = None
        self._squares: list[float] = []
        self._last_call, _ = last_call(model.parameters())  # that put something else than a plain gradient in `.grad`
        self._left_out = 0  # steps in a row whose gradients were not plain, while a window was open
        self.curvature = curvature
        self.measurement: Measurement | None = None
        self._norms = NormLayerGradients(model) if layers == "norms" else None
        self._moments: list[tuple[float, float]] = []
        self._open_norms()

    def after_backward(self) -> None:
        """Reads `.grad` of the model's parameters. Call it once per step, also on steps that it does not record."""
        step, self.steps = self.steps, self.steps + 1
        if self._norms is None and self._sum is None and _now(self.every, step):
            self._sum, self._squares = {}, []
        call, content = last_call(self.model.parameters())
        plain, self._last_call = call <= self._last_call, call
        is_open = self._sum is not None or (self._norms is not None and self._norms.is_open)
        if is_open and plain:
            self._left_out = 0
            self._watch(step)
        elif is_open:
            self._leave_out(content)
        if self.full is not None and _now(self.full, step):
            self._measure(step)
        self._open_norms()

    def state_dict(self) -> dict[str, Any]:
        """The step count, the rows, and the window that is open: what a resumed run needs."""
        return {
            "steps": self.steps,
            "rows": [dict(row) for row in self.rows],
            "sum": None if self._sum is None else {name: tensor.clone() for name, tensor in self._sum.items()},
            "squares": list(self._squares),
            "moments": None if self._norms is None or not self._norms.is_open else list(self._moments),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        missing = {"steps", "rows", "sum", "squares"} - set(state)
        if missing:
            raise InputError(f"the state has no {', '.join(sorted(missing))}; expected that of Recorder.state_dict().")
        devices = {name: parameter.device for name, parameter in self.model.named_parameters()}
        unknown = set(state["sum"] or ()) - set(devices)
        if unknown:
            raise InputError(f"the state has a gradient of {min(unknown)!r}, which the model does not have.")
        self.steps, self.rows = int(state["steps"]), [dict(row) for row in state["rows"]]
        self._squares = [float(square) for square in state["squares"]]
        self._sum = (
            None
            if state["sum"] is None
            else {name: tensor.to(devices[name], copy=True) for name, tensor in state["sum"].items()}
        )
        if self._norms is not None:
            self._norms.close()
            moments = state.get("moments")
            if moments is not None:
                self._norms.open()
            self._moments = [(float(squared_norm), float(variance)) for squared_norm, variance in moments or ()]

    def _leave_out(self, content: str) -> None:
        self._left_out += 1
        if self._norms is not None:
            self._norms.discard()
        if self._left_out < self.window:
            return
        self._sum = None
        if self._norms is not None:
            self._norms.close()
        if self.full is None:
            raise InputError(
                f"the gradients {content}, and those of the {self._left_out - 1} steps before; the window needs plain "
                "ones. Use full=… with loss_fn and dataset, which reads no gradients of the training loop, or a "
                "penalty with every=2 or more."
            )

    def _open_norms(self) -> None:
        """Hooks must be there before the forward pass: a window opens at the end of the step before."""
        if self._norms is not None and not self._norms.is_open and _now(self.every, self.steps):
            self._left_out, self._moments = 0, []
            self._norms.open()

    def _watch_norms(self, step: int, norms: NormLayerGradients) -> None:
        self._moments.append(step_moments(norms.take(self.batch_size), train_size=self.train_size))
        if len(self._moments) == self.window:
            norms.close()
            self._add(step, norms_row(self._moments, batch_size=self.batch_size, train_size=self.train_size))

    def _watch(self, step: int) -> None:
        if self._norms is not None:
            self._watch_norms(step, self._norms)
            return
        # By name: a layer that a step leaves out has no gradient then, which counts as zero.
        gradients = {
            name: parameter.grad.detach().to_dense()
            for name, parameter in self.model.named_parameters()
            if parameter.grad is not None
        }
        if not gradients:
            raise InputError("no parameter has a gradient; expected after_backward() between backward and zero_grad.")
        assert self._sum is not None
        for name, gradient in gradients.items():
            self._sum[name] = self._sum[name] + gradient if name in self._sum else gradient.clone()
        self._squares.append(_squared_norm(gradients))
        if len(self._squares) == self.window:
            of_mean = _squared_norm(self._sum) / self.window**2
            self._sum = None
            self._add(step, cheap_row(self._squares, of_mean, batch_size=self.batch_size, train_size=self.train_size))

    def _measure(self, step: int) -> None:
        state, devices = torch.get_rng_state(), _cuda_states()
        try:
            # Not every model is deterministic, and finding that out draws random numbers.
            self.measurement = measure(
                self.model, self.loss_fn, self.dataset, batch_size=self.batch_size, sample=self.sample, seed=step,
                curvature=self.curvature,
            )  # fmt: skip
        finally:
            if self._norms is not None:
                self._norms.discard()  # the measurement ran the model, and hooks saw it
            torch.set_rng_state(state)
            if devices:
                torch.cuda.set_rng_state_all(devices)
        self._add(step, {"kind": "full", **self.measurement.to_row()})

    def _add(self, step: int, row: dict[str, Any]) -> None:
        # A run that diverged has no numbers; JSON has no word for that but null.
        row = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in row.items()
        }
        whole = {"step": step, **row}
        self.rows.append(whole)
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(whole) + "\n")
        if self.writer is not None:
            sinks.write(self.writer, {name: value for name, value in row.items() if isinstance(value, float)}, step)


def cheap_row(squares: list[float], of_mean: float, *, batch_size: int, train_size: int) -> dict[str, Any]:
    """Γ, ‖∇C‖² and the noise scale from squared norms at batch sizes B and k·B; k disjoint minibatches.

    With V = N/(N−1) Γ a minibatch of size B has E‖∇Ĉ‖² = ‖∇C‖² + (1/B − 1/N) V, so the two sizes give two equations.
    """
    count, mean = len(squares), sum(squares) / len(squares)
    variance = (mean - of_mean) / (1 / batch_size - 1 / (count * batch_size))
    squared_norm = mean - (1 / batch_size - 1 / train_size) * variance
    gamma = (train_size - 1) / train_size * variance
    explained = {} if squared_norm >= 0 else {"note": BELOW_ZERO}
    return {
        "kind": "cheap",
        "window": count,
        "batch_size": batch_size,
        "gradient_covariance_trace": gamma,
        "full_gradient_squared_norm": squared_norm,
        "implicit_regularizer": mean / 4,
        "noise_scale": gamma / squared_norm if squared_norm > 0 else None,
        **explained,
    }


def _now(when: When, step: int) -> bool:
    return bool(when(step)) if callable(when) else step % when == 0


def _squared_norm(tree: Tree) -> float:
    return sum(float(torch.linalg.vector_norm(tensor, dtype=torch.float64)) ** 2 for tensor in tree.values())


def _cuda_states() -> list[Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else []
