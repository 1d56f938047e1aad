"""The final parameters of one run as a safetensors file that says whose they are, with a checksum."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tacit._errors import TacitError
from tacit._parsing import parse_json
from tacit.studies.describe.spec import RunSpec, canonical
from tacit.studies.train.checkpoint import arrays_sha256, read_metadata

KEY = "tacit"  # the only key of the metadata: safetensors writes several in no fixed order


def encode(run: RunSpec, named: Mapping[str, Tensor]) -> bytes:
    """The bytes of the file: tensors by name, and the run's hash and spec. Equal parameters have equal bytes."""
    from safetensors.numpy import save

    arrays = {name: value.detach().cpu().contiguous().numpy() for name, value in named.items()}
    facts = {"run": run.hash, "spec": run.model_dump(), "sha256": arrays_sha256(arrays, run.hash)}
    return save(arrays, metadata={KEY: canonical(facts)})


def decode(content: bytes, run: RunSpec) -> dict[str, Tensor]:
    """The tensors by name; TacitError when the bytes are damaged, or are the parameters of another run."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        facts, arrays = parse_json(read_metadata(content)[KEY].encode()), load(content)
        owner, stored = facts["run"], facts["sha256"]
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        raise TacitError("is not a file of weights that `tacit run` wrote") from None
    if stored != arrays_sha256(arrays, owner):
        raise TacitError("does not match its checksum")
    if owner != run.hash:
        raise TacitError(f"holds the parameters of run {owner}")
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
