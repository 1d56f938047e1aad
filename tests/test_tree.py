"""Arithmetic on named tensors equals arithmetic on the flattened vector."""

from __future__ import annotations

import pytest
import torch

from tacit._util import tree


def make_tree(seed: int) -> tree.Tree:
    draws = torch.Generator().manual_seed(seed)
    return {
        "weight": torch.randn(3, 2, generator=draws, dtype=torch.float64),
        "scalar": torch.randn((), generator=draws, dtype=torch.float64),
        "bias": torch.randn(4, generator=draws, dtype=torch.float64),
    }


LEFT, RIGHT = make_tree(0), make_tree(1)
ONE_ROUNDING = 1e-15


def test_unflatten_undoes_flatten_bitwise() -> None:
    back = tree.unflatten(tree.flatten(LEFT), LEFT)
    assert list(back) == list(LEFT)
    assert all(torch.equal(back[name], LEFT[name]) for name in LEFT)


def test_unflatten_refuses_a_vector_of_another_length() -> None:
    with pytest.raises(RuntimeError):
        tree.unflatten(torch.zeros(10), LEFT)


def test_add_is_left_plus_scale_times_right() -> None:
    expected = tree.flatten(LEFT) + 0.3 * tree.flatten(RIGHT)
    assert torch.allclose(tree.flatten(tree.add(LEFT, RIGHT, scale=0.3)), expected, rtol=ONE_ROUNDING, atol=0)


def test_scale_multiplies_every_leaf() -> None:
    assert torch.equal(tree.flatten(tree.scale(LEFT, -2.0)), -2.0 * tree.flatten(LEFT))


def test_dot_and_squared_norm_are_those_of_the_vector() -> None:
    left, right = tree.flatten(LEFT), tree.flatten(RIGHT)
    torch.testing.assert_close(tree.dot(LEFT, RIGHT), left @ right, rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(tree.squared_norm(LEFT), left @ left, rtol=1e-13, atol=0)


def test_leaves_are_matched_by_name_and_not_by_position() -> None:
    reordered = {name: RIGHT[name] for name in reversed(RIGHT)}
    assert torch.equal(tree.flatten(tree.add(LEFT, reordered)), tree.flatten(tree.add(LEFT, RIGHT)))


def test_a_missing_leaf_is_an_error() -> None:
    with pytest.raises(KeyError):
        tree.add(LEFT, {"weight": RIGHT["weight"]})


def test_nothing_given_is_changed() -> None:
    before = {name: leaf.clone() for name, leaf in LEFT.items()}
    tree.add(LEFT, RIGHT)
    tree.scale(LEFT, 3.0)
    tree.flatten(LEFT).zero_()
    assert all(torch.equal(before[name], LEFT[name]) for name in LEFT)
