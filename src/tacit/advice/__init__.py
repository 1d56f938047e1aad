"""Advice: from a measurement to the rate, the strength and the price of training at another batch size.

What should I change at a larger batch?      match → Advice (penalty, optimizer)
Why so much more than the first order?       finite_rate_factor, regularizer_factors
Which strength is really best?               search_strength
"""

from tacit.advice.advice import Advice
from tacit.advice.finite_rate import finite_rate_factor
from tacit.advice.matching import match
from tacit.advice.momentum import RegularizerFactors, regularizer_factors
from tacit.advice.optimizers import Momentum
from tacit.advice.search import StrengthSearch, search_strength

__all__ = [
    "Advice",
    "Momentum",
    "RegularizerFactors",
    "StrengthSearch",
    "finite_rate_factor",
    "match",
    "regularizer_factors",
    "search_strength",
]
