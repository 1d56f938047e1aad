"""The mean of SGD when one epoch is not short: τ = mε finite, minibatches many.

The modified loss assumes mε ≪ 1. At fixed τ every φₖ contributes at the same order in 1/m; summed up, they leave an
error of O(1/m²) for any τ.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad, jacfwd

from tacit._util.errors import InputError
from tacit.problem import Problem
from tacit.theory.flows import flow
from tacit.theory.landscape import Landscape, Parameters, view

LARGEST = 200  # the system carries a d×d covariance and differentiates a dense Hessian


def resummed_mean(problem: Problem | Landscape, parameters: Parameters = None, *, learning_rate: float) -> Tensor:
    """E(ω_m) after one epoch of random order, up to O(1/m²) at fixed τ = mε; not in the paper.

    μ̇ = −g − (ε/2) H g − ½ T:P − R,    ẏⱼ = −H yⱼ + δgⱼ,    Q̇ = −HQ − QH + Σ,      all at μ, from yⱼ = 0, Q = 0,
    P = εQ − (ε/τ) ⟨yⱼ yⱼᵀ⟩,    R = (ε/τ) ⟨δHⱼ yⱼ⟩,    Σ = ⟨δgⱼ δgⱼᵀ⟩.

    P is the covariance of a bridge: noise that must have cancelled when the epoch ends.
    """
    scape, w = view(problem, parameters)
    if scape.size > LARGEST:
        raise InputError(f"{scape.size} parameters; the resummed flow takes at most {LARGEST}. Use `mean_iterate`.")
    batches, size = scape.batches_per_epoch, scape.size
    length = batches * learning_rate

    def field(state: Tensor) -> Tensor:
        mean, responses, spread = state[0], state[1 : batches + 1], state[batches + 1 :]
        each = scape.minibatch_gradients(mean)
        g = each.mean(0)
        deviations = each - g
        hessian = jacfwd(scape.gradient)(mean)
        bridge = learning_rate * spread - learning_rate / length * responses.T @ responses / batches
        contraction = grad(lambda p: (jacfwd(scape.gradient)(p) * bridge).sum())(mean)
        through_each = scape.minibatch_products(mean, responses).mean(0) - hessian @ responses.mean(0)
        drift = -g - learning_rate / 2 * hessian @ g - contraction / 2 - learning_rate / length * through_each
        respond = -responses @ hessian + deviations
        diffuse = -hessian @ spread - spread @ hessian + deviations.T @ deviations / batches
        return torch.cat([drift.unsqueeze(0), respond, diffuse])

    start = torch.cat([w.unsqueeze(0), torch.zeros(batches + size, size, dtype=torch.float64)])
    return flow(field, start, time=length, rtol=1e-9, atol=1e-11)[0]
