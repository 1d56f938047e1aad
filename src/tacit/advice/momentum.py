"""What momentum does to SGD's implicit regularizer: one factor for the full gradient, another for the noise.

SGD with momentum β, minibatches drawn without replacement, follows in the mean

    C + (ε_e/4) [ a(β) ‖∇C‖² + ρ_m(β) (1/m) Σₖ ‖∇Ĉₖ − ∇C‖² ],     ε_e = ε/(1−β),

m minibatches in an epoch. A gradient seen at step s has entered the parameters with the weight W_n = Σ_{k≤n} w_k after
n + 1 updates, of W_∞ = 1/(1−β) in the end: w_k = β^k for heavy ball, so W_n = (1 − β^{n+1})/(1−β), and one power of β
more for Nesterov. Minibatches of one epoch are anticorrelated, E[∇²Ĉ_t ∇Ĉ_s] − ∇²C ∇C = −κ/(m−1) for s ≠ t, and
summing their effect over all pairs s < t of an epoch gives

    ρ_m = 2/(m(m−1)) Σ_{n=1}^{m−1} (m−n)(1 − β^n)       heavy ball,      β^{n+1} in place of β^n for Nesterov

a(β) is the first coefficient of the modified flow without noise: (1+β)/(1−β), and (1−β+2β²)/(1−β) for Nesterov. So
momentum amplifies what SGD does to the full gradient, and not what it does to the noise: ρ_m → 1 for many minibatches.
Tests compare both with `tacit.theory`, and Nesterov's with the mean over all orders of its own iterates.
"""

from __future__ import annotations

from dataclasses import dataclass

from tacit._util.arguments import finite_number, whole_number
from tacit._util.errors import InputError
from tacit.theory.modified_losses import momentum_variance_factor


@dataclass(frozen=True)
class RegularizerFactors:
    """The implicit regularizer is (1/4)(full ‖∇C‖² + noise · minibatch variance): both factors have the unit of ε."""

    full: float
    noise: float


def regularizer_factors(
    learning_rate: float, *, batches: int, momentum: float = 0.0, nesterov: bool = False
) -> RegularizerFactors:
    """ε_e a(β) and ε_e ρ_m(β) for the bare rate ε of torch.optim.SGD and m minibatches per epoch.

    >>> regularizer_factors(0.5, batches=8)
    RegularizerFactors(full=0.5, noise=0.5)
    >>> regularizer_factors(0.5, batches=10**6, momentum=0.5).full
    3.0
    """
    rate = finite_number("learning_rate", learning_rate, positive=True)
    m = whole_number("batches", batches, at_least=1)
    beta = finite_number("momentum", momentum)
    if beta >= 1:
        raise InputError(f"momentum={momentum!r}; expected 0 <= momentum < 1.")
    effective, rho = rate / (1 - beta), momentum_variance_factor(m, beta)
    amplified = (1 - beta + 2 * beta**2 if nesterov else 1 + beta) / (1 - beta)
    return RegularizerFactors(effective * amplified, effective * (1 - beta * (1 - rho) if nesterov else rho))
