"""Scenarios that were once wrong, each with a name: what the random search found, as small as it could be made."""

from __future__ import annotations

from random_networks import Op
from random_scenarios import Scenario

NAMED: dict[str, Scenario] = {
    # A layer whose input needs a gradient that the norm does not: a term of the Gram form was lost.
    "an_encoder_outside_of_the_model": Scenario(encoder=True),
    "an_encoder_and_micro_batches": Scenario(ops=(Op("bare_linear", 1),), encoder=True, micro_batches=2),
    "inputs_with_a_gradient": Scenario(seed=1, input_gradient=True),
    "low_rank_after_an_encoder": Scenario(ops=(Op("low_rank"),), inputs="sequences", batch=1, encoder=True),
    "an_excluded_first_layer": Scenario(
        ops=(Op("transposed_convolution", 2), Op("depthwise")), inputs="sequences", batch=1, exclude=(0, 1)
    ),
    # The output of a layer on three axes was a view of a custom function.
    "a_residual_added_in_place": Scenario(ops=(Op("residual", 4, 1, (Op("linear"),)),), inputs="sequences"),
    "a_relu_in_place_on_sequences": Scenario(ops=(Op("linear"), Op("curve_in_place")), inputs="sequences"),
    "an_entry_of_a_sequence_set_to_zero": Scenario(ops=(Op("linear"), Op("write", 4, 1)), inputs="sequences"),
    # Each recomputation counted a batch.
    "batch_norm_in_a_checkpoint": Scenario(ops=(Op("checkpointed", 4, 0, (Op("batch_norm"),)),), batch=2),
    # The first view's block was run again before the second's: running means in another order than after a plain step.
    "two_views_of_batch_norm_in_a_checkpoint": Scenario(
        ops=(Op("checkpointed", 4, 0, (Op("batch_norm"),)),), batch=2, two_views=True
    ),
    # The comparison of the first step ran the block again, where the norm's own pass had not reached it.
    "batch_norm_in_a_checkpoint_below_the_norm": Scenario(
        ops=(Op("checkpointed", 4, 0, (Op("batch_norm"),)),), batch=6, exclude=(0, 1)
    ),
    # One block is run again by the norm's pass and by the last one, the other by the last one only.
    "two_checkpoints_of_which_one_is_below_the_norm": Scenario(
        ops=(
            Op("checkpointed", 4, 0, (Op("batch_norm"),)),
            Op("linear"),
            Op("checkpointed", 4, 0, (Op("batch_norm"),)),
        ),
        batch=6,
        exclude=(0, 1),
    ),
    # One pass over micro-batches wrote a buffer once that a loop writes once for each, and did not put it back.
    **{
        f"a_buffer_written_in_way_{way}": Scenario(
            ops=(Op("linear"), Op("count_passes", 4, way), Op("curve"), *extra), batch=8, micro_batches=4, calls=2
        )
        for way, extra in [(way, (Op("draw"),) * (way % 2)) for way in range(8)]
    },
    # torch.vmap counts and pads indices over all micro-batches.
    "an_embedding_that_counts_outside_of_the_norm": Scenario(
        ops=(Op("counted_tokens"), Op("curve"), Op("draw")), inputs="tokens", batch=8, micro_batches=4, exclude=(0,)
    ),
    # A raw error: the square of a complex gradient is no length.
    "complex_parameters": Scenario(ops=(Op("spectral"), Op("curve"), Op("spectral", 4, 1), Op("spectral", 4, 2))),
    "complex_parameters_in_micro_batches": Scenario(
        ops=(Op("spectral"), Op("curve"), Op("spectral", 4, 1)), batch=8, micro_batches=4, calls=2
    ),
    # The recomputation ran torch's own hardsigmoid where the first pass had run one with a second derivative.
    "hardsigmoid_in_a_checkpoint": Scenario(
        ops=(Op("checkpointed", 4, 0, (Op("linear", 6), Op("curve", 4, 12))),), seed=5
    ),
    # The comparison of the first step took rounding for a missing term: bfloat16, and a gradient that is zero.
    "rounding_of_bfloat16": Scenario(inputs="sequences", batch=1, frozen=(1,), dtype="autocast"),
    "rounding_of_bfloat16_over_micro_batches": Scenario(
        ops=(Op("linear", 1), Op("curve", 4, 12)), seed=2, micro_batches=2, dtype="autocast"
    ),
    "a_gradient_that_is_zero": Scenario(
        ops=(
            Op("convolution", 4, 9),
            Op("curve", 4, 5),
            Op("linear", 7),
            Op("softmax", 4, 1),
            Op("branches", 4, 1, (Op("linear", 4, 1), Op("einsum", 3, 1), Op("norm", 4, 2))),
        ),
        inputs="sequences",
        batch=8,
        loss="logits_of_all_pairs",
        strength=0.0625,
        seed=8,
        frozen=(0,),
        micro_batches=4,
    ),
    # Rounded to bfloat16 the moved parameters were the same: a difference of zero, with a stated error of zero.
    "a_difference_below_the_rounding_of_autocast": Scenario(batch=1, dtype="autocast"),
    # A ReLU with its kinks held gave images in another memory format, and dropout drew another mask than a plain step.
    "dropout_after_a_relu_on_channels_last": Scenario(
        ops=(Op("curve", 4, 9), Op("dropout")), inputs="images", batch=1, channels_last=True
    ),
    # torch's forward derivatives fail under autocast, and on channels-last images (the last case): raw errors.
    "a_layer_norm_in_bfloat16": Scenario(ops=(Op("linear", 1), Op("norm")), batch=1, dtype="autocast"),
    # The network's own: it copied what it wrote into by the name of the operation before it, and a pool with its
    # choices held has another name.
    "a_pool_before_a_relu_in_place": Scenario(
        ops=(Op("pool", 4, 1), Op("residual", 4, 0, (Op("curve_in_place"),))),
        inputs="images",
        batch=1,
        seed=1,
        encoder=True,
    ),
    # An exact method took the step of an approximate one, and was judged without the rounding of bfloat16.
    "an_exact_step_in_bfloat16_in_place_of_a_difference": Scenario(
        ops=(Op("residual", 4, 0, (Op("norm"),)),), inputs="images", batch=1, seed=3, encoder=True, dtype="autocast"
    ),
    # Group norm on channels-last images that need no gradient: torch 2.13 itself crashes in a plain backward pass.
    "group_norm_on_images_without_a_gradient": Scenario(
        ops=(Op("pool", 4, 1), Op("linear"), Op("norm", 4, 2)), inputs="images", batch=8, frozen=(2,), micro_batches=4
    ),
    # Examples cancel: torch's own double backward in bfloat16 is off by a third of the plain gradient.
    "a_difference_in_bfloat16_where_examples_cancel": Scenario(
        ops=(
            Op("addmm"),
            Op("batch_norm"),
            Op("curve_in_place", 4, 3),
            Op("branches", 4, 1, (Op("einsum", 3), Op("curve", 4, 4), Op("curve_in_place", 4, 5))),
            Op("linear", 5, 1),
        ),
        inputs="tokens",
        batch=8,
        loss="logits_of_all_pairs",
        seed=5,
        exclude=(7, 8, 6),
        frozen=(5,),
        input_gradient=True,
        training=False,
        micro_batches=4,
        dtype="autocast",
    ),
}
