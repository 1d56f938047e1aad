"""The three closed-form problems, with their derivatives in dense arrays from the oracles."""

from __future__ import annotations

import numpy as np
import theory_oracles as oracles
import torch

from tacit.problem import Problem
from tacit.theory import Landscape, problems

CASES = tuple(problems.PROBLEMS)


def dense(problem: Problem, w: torch.Tensor | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """g (m, d), H (m, d, d), T (m, d, d, d) of the minibatches, from closed formulas and not from torch."""
    scape = Landscape(problem)
    point = (scape.start if w is None else w).numpy()
    parts = [_one(problem, batch.numpy(), point) for batch in problem.batches]
    g, H, T = (np.stack(column) for column in zip(*parts, strict=True))
    return g, H, T


def _one(problem: Problem, batch: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x, y = problem.inputs.numpy()[batch], problem.targets.numpy()[batch].reshape(len(batch))
    if len(problem.parameters) == 1:
        matrices, centres = x[:, :9].reshape(-1, 3, 3), x[:, 9:]
        return oracles.quadratic_derivatives(matrices, centres, w)
    if len(problem.parameters) == 2:
        return oracles.logistic_derivatives(np.column_stack([x, np.ones(len(x))]), y, w)
    return oracles.mlp_derivatives(x, y, w, hidden=3)


def relative(found: torch.Tensor, expected: np.ndarray) -> float:
    """‖found − expected‖ / ‖expected‖."""
    return float(np.linalg.norm(found.detach().numpy() - expected) / max(np.linalg.norm(expected), 1e-300))
