"""The modified losses: the functions whose gradient flow the discrete iterates follow, to first order in ε.

Every function takes a `Problem` (or its `Landscape`) and parameters, and returns a float64 scalar that can be
differentiated. The quarter is written once, in `quarter_of`.
"""

from __future__ import annotations

from torch import Tensor

from tacit._util.errors import InputError
from tacit.problem import Problem
from tacit.theory.landscape import Landscape, Parameters, view


def quarter_of(squared_norm: Tensor) -> Tensor:
    """One explicit step of length ε on a loss C is the flow of C + ε·(¼‖∇C‖²): the only quarter of this package."""
    return squared_norm / 4


def implicit_regularizer(problem: Problem | Landscape, parameters: Parameters = None) -> Tensor:
    """Mean squared minibatch gradient norm, divided by four.

    C_reg(ω) = (1/4m) Σₖ ‖∇Ĉₖ(ω)‖²                                                              (below Eq. 1)

    Depends on how the examples were grouped into minibatches, not on their order. Weight decay is part of Ĉₖ, so it
    sits inside the norm; outside, the flow it predicts is one order worse.

    >>> import torch
    >>> from tacit.theory import problems
    >>> problem = problems.logistic(batches=1)
    >>> grad = torch.cat([leaf.flatten() for leaf in problem.full_gradient().values()])
    >>> bool(torch.isclose(implicit_regularizer(problem), grad.square().sum() / 4))
    True
    """
    scape, w = view(problem, parameters)
    return quarter_of(scape.minibatch_gradients(w).square().sum(1).mean())


def full_gradient_regularizer(problem: Problem | Landscape, parameters: Parameters = None) -> Tensor:
    """¼ ‖∇C(ω)‖², what gradient descent regularizes by itself (Eq. 10)."""
    scape, w = view(problem, parameters)
    return quarter_of(scape.gradient(w).square().sum())


def variance_regularizer(problem: Problem | Landscape, parameters: Parameters = None) -> Tensor:
    """(1/4m) Σₖ ‖∇Ĉₖ(ω) − ∇C(ω)‖², what minibatches add to it (Eq. 2)."""
    scape, w = view(problem, parameters)
    gradients = scape.minibatch_gradients(w)
    return quarter_of((gradients - gradients.mean(0)).square().sum(1).mean())


def modified_loss_gd(
    problem: Problem | Landscape, parameters: Parameters = None, *, learning_rate: float | Tensor
) -> Tensor:
    """C̃_GD(ω) = C(ω) + (ε/4) ‖∇C(ω)‖²                                                          (Eq. 11)"""
    scape, w = view(problem, parameters)
    return scape.loss(w) + learning_rate * full_gradient_regularizer(scape, w)


def modified_loss_sgd(
    problem: Problem | Landscape, parameters: Parameters = None, *, learning_rate: float | Tensor
) -> Tensor:
    """C̃_SGD(ω) = C(ω) + (ε/4m) Σₖ ‖∇Ĉₖ(ω)‖²                                                    (Eq. 1)

    The mean iterate over all orders of the minibatches, after one epoch, is on its gradient flow up to O(ε³).
    For fixed minibatches of unequal size C is here the mean over minibatches, because that is what SGD follows.
    """
    scape, w = view(problem, parameters)
    return scape.loss(w) + learning_rate * implicit_regularizer(scape, w)


def modified_loss_sgd_by_variance(
    problem: Problem | Landscape, parameters: Parameters = None, *, learning_rate: float | Tensor
) -> Tensor:
    """C̃_SGD again: C(ω) + (ε/4) ‖∇C(ω)‖² + (ε/4m) Σₖ ‖∇Ĉₖ(ω) − ∇C(ω)‖²                         (Eq. 2)"""
    scape, w = view(problem, parameters)
    return modified_loss_gd(scape, w, learning_rate=learning_rate) + learning_rate * variance_regularizer(scape, w)


def modified_loss_nstep(
    problem: Problem | Landscape,
    parameters: Parameters = None,
    *,
    effective_learning_rate: float | Tensor,
    inner_steps: int,
) -> Tensor:
    """C̃_nSGD(ω) = C(ω) + (ε/4mn) Σₖ ‖∇Ĉₖ(ω)‖², ε = nα                                           (Eq. 39)

    Section 4 of the paper prints per-example costs Cᵢ in this sum; they must be minibatch costs, as in its appendix B.
    """
    return modified_loss_sgd(problem, parameters, learning_rate=effective_learning_rate / inner_steps)


def modified_loss_momentum(
    problem: Problem | Landscape,
    parameters: Parameters = None,
    *,
    effective_learning_rate: float | Tensor,
    momentum: float,
) -> Tensor:
    """The modified loss of SGD with heavy ball, minibatches without replacement; not in the paper.

    C̃ = C + (ε/4) [ (1+β)/(1−β) ‖∇C‖² + ρ (1/m) Σₖ ‖∇Ĉₖ − ∇C‖² ],   ε = (bare rate)/(1−β),
    ρ = 2/(m(m−1)) Σ_{n=1}^{m−1} (m−n)(1−βⁿ).

    Momentum amplifies the penalty on the full gradient and weakens the one on the variance. It is the loss that
    z = ω + β/(1−β)·(ω − previous ω) follows, once the memory has forgotten its start.
    """
    scape, w = view(problem, parameters)
    amplified = (1 + momentum) / (1 - momentum) * full_gradient_regularizer(scape, w)
    weakened = momentum_variance_factor(scape.batches_per_epoch, momentum) * variance_regularizer(scape, w)
    return scape.loss(w) + effective_learning_rate * (amplified + weakened)


def momentum_variance_factor(batches: int, momentum: float) -> float:
    """ρₘ(β) = 2/(m(m−1)) Σ_{n=1}^{m−1} (m−n)(1−βⁿ): 1 without momentum, and again 1 for many minibatches.

    >>> momentum_variance_factor(4, 0.0)
    1.0
    """
    if batches == 1 or momentum == 0:
        return 1.0  # of one minibatch there is no variance to weigh
    pairs = batches * (batches - 1)
    return 2 / pairs * sum((batches - n) * (1 - momentum**n) for n in range(1, batches))


def penalized_loss(problem: Problem | Landscape, parameters: Parameters = None, *, strength: float | Tensor) -> Tensor:
    """C_mod(ω) = C(ω) + λ C_reg(ω): the explicit penalty of the paper's section 2.3."""
    return modified_loss_sgd(problem, parameters, learning_rate=strength)


def modified_loss_of_penalized_sgd(
    problem: Problem | Landscape,
    parameters: Parameters = None,
    *,
    learning_rate: float | Tensor,
    strength: float | Tensor,
) -> Tensor:
    """C(ω) + (λ + ε) C_reg(ω): SGD at rate ε on C_mod adds its own regularizer to the explicit one.

    To imitate SGD at a large rate ε' with a small one, the strength to choose is therefore λ = ε' − ε.
    """
    return penalized_loss(problem, parameters, strength=strength + learning_rate)


def gradient_covariance_trace(problem: Problem | Landscape, parameters: Parameters = None) -> Tensor:
    """Γ(ω) = (1/N) Σⱼ ‖∇Cⱼ(ω) − ∇C(ω)‖², the trace of the per-example gradient covariance, population form.

    Weight decay cancels in it. Not defined for models that mix examples (batch norm in training mode).
    """
    scape, w = view(problem, parameters)
    gradients = scape.example_gradients(w)
    return (gradients - gradients.mean(0)).square().sum(1).mean()


def expected_minibatch_variance(train_size: int, batch_size: int) -> float:
    """(N−B)/(N−1)/B, the factor on Γ in E‖∇Ĉ − ∇C‖² over random minibatches without replacement   (Eq. 32)"""
    if train_size < 2:
        raise InputError(f"train_size={train_size}; expected at least 2 examples, for one the factor is 0/0.")
    return (train_size - batch_size) / (train_size - 1) / batch_size


def expected_modified_loss_sgd(
    problem: Problem | Landscape,
    parameters: Parameters = None,
    *,
    learning_rate: float | Tensor,
    updates_per_epoch: int | None = None,
) -> Tensor:
    """The loss that SGD follows in the mean over random partitions of the examples into minibatches, E[C̃_SGD].

    E[C̃_SGD] = C + (ε/4) ‖∇C‖² + (N−B)/(N−1) (ε/4B) Γ                                            (Eq. 22)
             = C + (ε/4) ‖∇C‖² + ε (m−1)/(4(N−1)) Γ,   m updates per epoch.

    When B does not divide N, whether the smaller last minibatch is kept or dropped, the mean iterate follows the second
    form. It is then not the mean of C̃_SGD over partitions, nor the first form: only the number of updates per epoch
    matters, and it is the problem's own unless given.
    """
    scape, w = view(problem, parameters)
    if scape.train_size < 2:
        raise InputError(f"train_size={scape.train_size}; expected at least 2 examples, for one the factor is 0/0.")
    updates = scape.batches_per_epoch if updates_per_epoch is None else updates_per_epoch
    gradients = scape.example_gradients(w)
    full = gradients.mean(0)
    variance = (updates - 1) / (scape.train_size - 1) * (gradients - full).square().sum(1).mean()
    return scape.full_loss(w) + learning_rate * quarter_of(full.square().sum() + variance)
