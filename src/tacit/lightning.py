"""Lightning: `Penalty`, `SharpnessAware` and `NoiseScale` for `Trainer`, `FabricPenalty` and `FabricSharpnessAware`.

In a clone: pip install '.[lightning]'
"""

from tacit.integrations.fabric_penalty import FabricPenalty, FabricSharpnessAware
from tacit.integrations.lightning_noise_scale import NoiseScale
from tacit.integrations.lightning_penalty import Penalty, SharpnessAware

__all__ = ["FabricPenalty", "FabricSharpnessAware", "NoiseScale", "Penalty", "SharpnessAware"]
