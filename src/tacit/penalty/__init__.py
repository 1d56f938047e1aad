"""The explicit regularizer for any PyTorch training loop."""

from tacit.penalty.factored_sgd import FactoredSGD
from tacit.penalty.gradient_penalty import GradientPenalty
from tacit.penalty.record import PenaltyRecord
from tacit.penalty.registry import METHODS, Method
from tacit.penalty.sam_step import SharpnessAwareRecord
from tacit.penalty.sharpness_aware import SharpnessAware

__all__ = [
    "METHODS",
    "FactoredSGD",
    "GradientPenalty",
    "Method",
    "PenaltyRecord",
    "SharpnessAware",
    "SharpnessAwareRecord",
]
