"""Lightning: `Penalty` and `NoiseScale` for `Trainer`, `FabricPenalty`. In a clone: pip install '.[lightning]'"""

from tacit.integrations.fabric_penalty import FabricPenalty
from tacit.integrations.lightning_noise_scale import NoiseScale
from tacit.integrations.lightning_penalty import Penalty

__all__ = ["FabricPenalty", "NoiseScale", "Penalty"]
