"""Batch sharpness: the curvature that SGD's own steps meet.

⟨g_B, H_B g_B⟩ averaged over minibatches, divided by the average ‖g_B‖². One step changes the loss of its own minibatch
by −ε‖g_B‖² + (ε²/2)⟨g_B, H_B g_B⟩ + …, so at 2/ε a step no longer lowers, on average, the loss that it descends.
SGD is reported to settle there (Andreyev and Beneventano, arXiv 2412.20553), as full-batch gradient descent settles
where its largest curvature is 2/ε. With momentum β the reports are 2(1−β)/ε for small batches and 2(1+β)/ε for large
ones (arXiv 2604.14108).
"""

from __future__ import annotations

from tacit.problem import Problem
from tacit.theory.landscape import Landscape, Parameters, view


def batch_sharpness(problem: Problem | Landscape, parameters: Parameters = None) -> float:
    """E⟨g_B, H_B g_B⟩/E‖g_B‖² over the problem's minibatches, in float64.

    >>> from tacit.theory import problems
    >>> 0 < batch_sharpness(problems.logistic()) < 2
    True
    """
    scape, w = view(problem, parameters)
    gradients = scape.minibatch_gradients(w)
    return ((scape.minibatch_products(w, gradients) * gradients).sum() / gradients.square().sum()).item()
