"""The largest eigenvalue of the Hessian of C, by Lanczos iterations on Hessian products."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import torch
from scipy import stats
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from tacit._util import tree
from tacit._util.graph import WRONG_SECOND_DERIVATIVES, nodes, operation
from tacit._util.lanczos import extreme_eigenpairs
from tacit._util.random_generators import generator
from tacit._util.tree import Tree
from tacit.diagnostics.estimates import Estimate
from tacit.problem import Problem

GROUPS = 16  # of examples, for the interval
# Through these torch returns wrong second derivatives without a word. An Error node stands for a function marked as
# differentiable once: it drops out of the sum.
WRONG = {**WRONG_SECOND_DERIVATIVES, "Error": "a function that can be differentiated only once"}


def largest_eigenvalue(
    problem: Problem,
    examples: Tensor,
    *,
    train_size: int,
    chunk_size: int = 256,
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[Estimate, np.ndarray]:
    """λ_max of ∇²C on the given examples, algebraically largest, and its eigenvector: decides which rate is stable.

    The interval is that of the mean of vᵀ∇²Cⱼv over examples at the eigenvector v found, the first-order change of an
    eigenvalue when examples change, from up to 16 groups. The largest eigenvalue of a sample is on average a little
    too large.
    """
    size = sum(value.numel() for value in problem.parameters.values())
    _require_second_derivatives(problem, examples[:2])

    def product(vector: np.ndarray, some: Tensor = examples) -> np.ndarray:
        direction = torch.from_numpy(np.ascontiguousarray(vector.reshape(-1)))
        return hessian_product(problem, some, direction, chunk_size=chunk_size).numpy()

    start = torch.randn(size, generator=generator(seed, "probe"), dtype=torch.float64).numpy()
    values, vectors = extreme_eigenpairs(product, start)
    value, vector = float(values[-1]), vectors[:, -1]
    if len(examples) == train_size or len(examples) < 2:
        return Estimate(value, value, value), vector
    groups = examples.tensor_split(min(GROUPS, len(examples)))
    along = np.array([float(vector @ product(vector, group)) for group in groups])
    error = math.sqrt(along.var(ddof=1) / len(along) * (1 - len(examples) / train_size))
    half = float(stats.t.ppf(0.5 + confidence / 2, len(along) - 1)) * error
    return Estimate(value, value - half, value + half), vector


def full_gradient(problem: Problem, examples: Tensor, *, chunk_size: int) -> Tensor:
    """The mean gradient over the examples as a flat float64 vector, chunk by chunk."""
    return _over_chunks(problem.gradient, examples, chunk_size)


def hessian_product(problem: Problem, examples: Tensor, vector: Tensor, *, chunk_size: int) -> Tensor:
    """∇²C v on the given examples, weight decay included, in the same form."""
    direction = tree.unflatten(vector.to(tree.flatten(problem.parameters)), problem.parameters)
    return _over_chunks(lambda some: problem.hessian_product(some, direction), examples, chunk_size)


def _over_chunks(function: Callable[[Tensor], Tree], examples: Tensor, chunk_size: int) -> Tensor:
    chunks = examples.split(chunk_size)
    parts = (len(some) / len(examples) * tree.flatten(function(some)).double().cpu() for some in chunks)
    return functools.reduce(torch.add, parts)


def _require_second_derivatives(problem: Problem, examples: Tensor) -> None:
    leaves = {name: value.detach().requires_grad_() for name, value in problem.parameters.items()}
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        loss = problem.loss(leaves, examples)
        gradients = torch.autograd.grad(
            loss, list(leaves.values()), create_graph=True, materialize_grads=True, allow_unused=True
        )
    for node in nodes(loss, *gradients):
        words = WRONG.get(operation(node))
        if words is not None:
            raise RuntimeError(f"torch has no right second derivatives through {words}; write it out to have them")
