"""The theory as software, in float64: what an optimizer follows, whether that is true, and how far it reaches.

Which loss does my optimizer follow?        verify_update, modified_flow, modified_flow_symbolic, modified_loss_of
And if it has a preconditioner?             preconditioned_loss, preconditioned_loss_symbolic
Which loss does SGD follow?                 modified_loss_sgd, implicit_regularizer, modified_loss_momentum, …
Is that so?                                 verify, verify_all, and `tacit verify`
Is my learning rate small enough?           regime, largest_stable_learning_rate, batch_sharpness
And if it is not small?                     principal_field, compare_flows, resummed_mean
And with a sampled penalty, or SAM?         modified_loss_of_sampled_penalty, sampled_penalty_edge, sam_terms
What do the orders of minibatches do?       mean_iterate, commutator, order_covariance, moments_with_fresh_orders

docs/theory.md is the guide; docs/reference/theory.md has every name under its question.

>>> import tacit
>>> study = tacit.theory.verify(tacit.theory.problems.logistic(batches=3), only="mean SGD against C̃_SGD")
>>> study.passed
True
"""

from tacit.edges import (
    Step,
    largest_stable_curvature,
    largest_stable_learning_rate,
    largest_stable_strength,
    largest_stable_strength_sampled,
    sampling_factor,
    stability_limit,
)
from tacit.theory import problems
from tacit.theory.corrections import (
    commutator,
    double_bracket,
    expected_order_correction,
    expected_second_correction,
    gd_first_correction,
    gd_second_correction,
    iid_nstep_first_correction,
    iid_second_correction,
    mirrored_second_correction,
    order_correction,
    order_covariance,
    sgd_first_correction,
    sgd_second_correction,
    sgd_second_correction_estimate,
)
from tacit.theory.finite_horizon import resummed_mean
from tacit.theory.fixed_time import Moments, moments_with_fresh_orders, moments_with_replacement
from tacit.theory.flow_comparison import FlowComparison, compare_flows
from tacit.theory.flows import flow, gradient_flow_field
from tacit.theory.guards import require_third_derivatives, warn_if_not_smooth
from tacit.theory.iterates import gradient_descent, sgd
from tacit.theory.landscape import Landscape
from tacit.theory.logarithm import ModifiedFlow, difference_field, modified_flow
from tacit.theory.means import MeanIterate, mean_iterate, mean_iterate_with_replacement
from tacit.theory.memory import MemoryEpoch, MemoryMethod, memory_corrections, slow_memory
from tacit.theory.modified_losses import (
    expected_minibatch_variance,
    expected_modified_loss_sgd,
    full_gradient_regularizer,
    gradient_covariance_trace,
    implicit_regularizer,
    modified_loss_gd,
    modified_loss_momentum,
    modified_loss_nstep,
    modified_loss_of_penalized_sgd,
    modified_loss_sgd,
    modified_loss_sgd_by_variance,
    momentum_variance_factor,
    penalized_loss,
    variance_regularizer,
)
from tacit.theory.orders import Orders, orders_of
from tacit.theory.potentials import ModifiedLoss, asymmetry, loss_difference, modified_loss_of
from tacit.theory.preconditioned import (
    PreconditionedLoss,
    SymbolicLag,
    preconditioned_field,
    preconditioned_loss,
    preconditioned_loss_symbolic,
)
from tacit.theory.principal_flow import coupling_factor, principal_factor, principal_field
from tacit.theory.sampled_penalty import (
    modified_loss_of_penalty_every,
    modified_loss_of_sampled_penalty,
    moments_with_sampled_penalty,
    penalty_every_update,
    penalty_with_probability_update,
    sampled_penalty_correction,
    sampled_penalty_edge,
    sampled_penalty_growth,
    sampled_penalty_update,
)
from tacit.theory.sharpness import batch_sharpness
from tacit.theory.sharpness_aware import SamTerms, sam_field, sam_from_rows, sam_terms
from tacit.theory.study import ConvergenceStudy, Finding
from tacit.theory.symbolic import SymbolicFlow, modified_flow_symbolic
from tacit.theory.update_study import UpdateStudy, verify_update
from tacit.theory.updates import (
    adam,
    adam_rule,
    averaged_gd,
    extragradient,
    gd_update,
    heavy_ball,
    inverse_root,
    lookahead,
    mean_adam_epoch,
    mean_epoch,
    mean_sgd_epoch_update,
    muon,
    nesterov,
    newton_schulz,
    normalized_gd,
    rmsprop,
    runge_kutta,
    sam,
    schedule_free,
    sgd_epoch_update,
    shrinking_sam,
    smooth_lion,
)
from tacit.theory.validity import Regime, curvature, regime
from tacit.theory.verification import verify, verify_all

__all__ = [
    "ConvergenceStudy",
    "Finding",
    "FlowComparison",
    "Landscape",
    "MeanIterate",
    "MemoryEpoch",
    "MemoryMethod",
    "ModifiedFlow",
    "ModifiedLoss",
    "Moments",
    "Orders",
    "PreconditionedLoss",
    "Regime",
    "SamTerms",
    "Step",
    "SymbolicFlow",
    "SymbolicLag",
    "UpdateStudy",
    "adam",
    "adam_rule",
    "asymmetry",
    "averaged_gd",
    "batch_sharpness",
    "commutator",
    "compare_flows",
    "coupling_factor",
    "curvature",
    "difference_field",
    "double_bracket",
    "expected_minibatch_variance",
    "expected_modified_loss_sgd",
    "expected_order_correction",
    "expected_second_correction",
    "extragradient",
    "flow",
    "full_gradient_regularizer",
    "gd_first_correction",
    "gd_second_correction",
    "gd_update",
    "gradient_covariance_trace",
    "gradient_descent",
    "gradient_flow_field",
    "heavy_ball",
    "iid_nstep_first_correction",
    "iid_second_correction",
    "implicit_regularizer",
    "inverse_root",
    "largest_stable_curvature",
    "largest_stable_learning_rate",
    "largest_stable_strength",
    "largest_stable_strength_sampled",
    "lookahead",
    "loss_difference",
    "mean_adam_epoch",
    "mean_epoch",
    "mean_iterate",
    "mean_iterate_with_replacement",
    "mean_sgd_epoch_update",
    "memory_corrections",
    "mirrored_second_correction",
    "modified_flow",
    "modified_flow_symbolic",
    "modified_loss_gd",
    "modified_loss_momentum",
    "modified_loss_nstep",
    "modified_loss_of",
    "modified_loss_of_penalized_sgd",
    "modified_loss_of_penalty_every",
    "modified_loss_of_sampled_penalty",
    "modified_loss_sgd",
    "modified_loss_sgd_by_variance",
    "moments_with_fresh_orders",
    "moments_with_replacement",
    "moments_with_sampled_penalty",
    "momentum_variance_factor",
    "muon",
    "nesterov",
    "newton_schulz",
    "normalized_gd",
    "order_correction",
    "order_covariance",
    "orders_of",
    "penalized_loss",
    "penalty_every_update",
    "penalty_with_probability_update",
    "preconditioned_field",
    "preconditioned_loss",
    "preconditioned_loss_symbolic",
    "principal_factor",
    "principal_field",
    "problems",
    "regime",
    "require_third_derivatives",
    "resummed_mean",
    "rmsprop",
    "runge_kutta",
    "sam",
    "sam_field",
    "sam_from_rows",
    "sam_terms",
    "sampled_penalty_correction",
    "sampled_penalty_edge",
    "sampled_penalty_growth",
    "sampled_penalty_update",
    "sampling_factor",
    "schedule_free",
    "sgd",
    "sgd_epoch_update",
    "sgd_first_correction",
    "sgd_second_correction",
    "sgd_second_correction_estimate",
    "shrinking_sam",
    "slow_memory",
    "smooth_lion",
    "stability_limit",
    "variance_regularizer",
    "verify",
    "verify_all",
    "verify_update",
    "warn_if_not_smooth",
]


def __dir__() -> list[str]:
    """The public names alone: files of this folder are not mixed with them."""
    return __all__
