"""Transformers: `PenaltyMixin`, also for SAM, and `NoiseScale`. In a clone: pip install '.[transformers]'"""

from tacit.integrations.transformers_noise_scale import NoiseScale
from tacit.integrations.transformers_penalty import PenaltyMixin

__all__ = ["NoiseScale", "PenaltyMixin"]
