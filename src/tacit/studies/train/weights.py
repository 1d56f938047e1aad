"""The final parameters of one run as a safetensors file that says whose they are, with a checksum."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tacit._util import tensor_file
from tacit._util.errors import TacitError
from tacit.studies.describe.spec import RunSpec


def encode(run: RunSpec, named: Mapping[str, Tensor]) -> bytes:
    """The bytes of the file: tensors by name, and the run's hash and spec. Equal parameters have equal bytes."""
    arrays = {name: value.detach().cpu().contiguous().numpy() for name, value in named.items()}
    return tensor_file.encode(arrays, {"run": run.hash, "spec": run.model_dump()})


def decode(content: bytes, run: RunSpec) -> dict[str, Tensor]:
    """The tensors by name; TacitError when the bytes are damaged, or are the parameters of another run."""
    try:
        arrays, facts = tensor_file.decode(content)
    except ValueError as error:
        raise TacitError(str(error)) from None
    if facts.get("run") != run.hash:
        raise TacitError(f"holds the parameters of run {facts.get('run')}")
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
