"""The differentiable operations that a result was made of, by the names of torch's autograd nodes."""

from __future__ import annotations

from torch import Tensor


def operation_names(output: Tensor) -> set[str]:
    """Names of the nodes in the graph behind `output`, without torch's 'Backward0': `Relu`, `Addmm`, …"""
    found, waiting, seen = set(), [output.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        found.add(type(node).__name__.split("Backward")[0].rstrip("0123456789D") or "?")
        waiting += [parent for parent, _ in node.next_functions]
    return found
