"""Images on the device: standardised as the datasets say, augmented by true crops and flips."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tacit.studies.data import images
from tacit.studies.data.datasets import FACTS

RAW = {
    name: np.random.default_rng(0).integers(0, 256, (6, *FACTS[name].shape), dtype=np.uint8)
    for name in ("fashion_mnist", "cifar10")
}


def prepared(name: str, raw: np.ndarray | None = None, *, size: int | None = None) -> images.Images:
    return images.prepare(RAW[name] if raw is None else raw, FACTS[name], size=size, dtype=torch.float64)


def assert_equal(found: torch.Tensor, wanted: np.ndarray) -> None:
    # Two ways to round the same arithmetic in float64, on numbers of size 1.
    torch.testing.assert_close(found, torch.from_numpy(wanted), rtol=1e-12, atol=1e-12)


def test_fashion_mnist_is_standardised_image_by_image() -> None:
    wanted = np.empty(RAW["fashion_mnist"].shape)
    for at, image in enumerate(RAW["fashion_mnist"]):
        pixels = [float(value) for value in image.ravel()]
        mean = sum(pixels) / len(pixels)
        deviation = (sum((value - mean) ** 2 for value in pixels) / len(pixels)) ** 0.5
        wanted[at] = (image - mean) / max(deviation, 1 / len(pixels) ** 0.5)
    assert_equal(prepared("fashion_mnist").between(0, 6), wanted)


def test_an_image_of_one_colour_is_zeros_not_infinities() -> None:
    assert (prepared("fashion_mnist", np.full((1, 1, 28, 28), 7, np.uint8)).between(0, 1) == 0).all()


def test_cifar10_is_standardised_channel_by_channel() -> None:
    facts, wanted = FACTS["cifar10"], np.empty(RAW["cifar10"].shape)
    for channel in range(3):
        wanted[:, channel] = (RAW["cifar10"][:, channel] / 255 - facts.mean[channel]) / facts.deviation[channel]
    assert_equal(prepared("cifar10").between(0, 6), wanted)


def test_a_smaller_image_is_the_mean_over_squares_of_pixels() -> None:
    facts, wanted = FACTS["cifar10"], np.empty((6, 3, 16, 16))
    for row in range(16):
        for column in range(16):
            square = RAW["cifar10"][:, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2].mean((2, 3))
            wanted[:, :, row, column] = (square / 255 - facts.mean) / facts.deviation
    assert_equal(prepared("cifar10", size=16).between(0, 6), wanted)


@pytest.mark.parametrize("name", RAW)
def test_taking_by_number_is_picking_from_the_whole(name: str) -> None:
    made, numbers = prepared(name), torch.tensor([4, 0, 4])
    assert torch.equal(made.take(numbers), made.between(0, 6)[numbers])
    assert torch.equal(made.between(2, 5), made.between(0, 6)[2:5])


def test_pixels_stay_bytes_in_memory() -> None:
    assert prepared("cifar10").pixels.dtype == torch.uint8


@pytest.mark.parametrize("name,size,pad", [("cifar10", None, 4), ("cifar10", 16, 2), ("fashion_mnist", None, 4)])
def test_each_augmented_image_is_a_crop_of_its_padded_self(name: str, size: int | None, pad: int) -> None:
    made = prepared(name, size=size)
    assert images.padding(size, FACTS[name].shape[-1]) == pad
    numbers = torch.tensor([5, 1, 1, 3] * 8)
    tops, lefts, flipped = images.draw_crops(len(numbers), [3], padding=pad, position=11)
    found = images.crops_and_flips(made, [3], batch_size=len(numbers), padding=pad)(numbers, 11)
    pixels = made.pixels.double().numpy()
    wanted = np.empty((len(numbers), *pixels.shape[1:]))
    for at, number in enumerate(numbers.tolist()):
        padded = np.pad(pixels[number], ((pad, pad), (pad, pad), (0, 0)))
        top, left = int(tops[at]), int(lefts[at])
        cut = padded[top : top + pixels.shape[1], left : left + pixels.shape[2]]
        cut = cut[:, ::-1] if flipped[at] else cut
        own = number if len(made.scale) == len(made) else 0
        wanted[at] = cut * made.scale[own].numpy() + made.offset[own].numpy()
    assert 0 < int(flipped.sum()) < len(numbers)
    assert_equal(found, wanted.transpose(0, 3, 1, 2))


def test_crops_are_a_pure_function_of_seed_and_position() -> None:
    def drawn(seed: int, position: int) -> tuple[torch.Tensor, ...]:
        return images.draw_crops(64, [seed], padding=4, position=position)

    first = drawn(1, 5)
    torch.rand(100)  # the global generator has no say
    assert all(map(torch.equal, first, drawn(1, 5)))
    for other in (drawn(2, 5), drawn(1, 6)):
        assert not any(map(torch.equal, first, other))


def test_the_crops_of_a_fleet_are_those_of_its_members() -> None:
    together = images.draw_crops(32, [7, 8], padding=2, position=3)
    alone = [images.draw_crops(32, [seed], padding=2, position=3) for seed in (7, 8)]
    for drawn, *parts in zip(together, *alone, strict=True):
        assert torch.equal(drawn, torch.cat(parts))


def test_every_place_and_both_sides_are_equally_likely() -> None:
    top, left, flipped = images.draw_crops(16_200, [0], padding=4, position=0)
    cells = (top * 9 + left) * 2 + flipped
    counts = torch.bincount(cells, minlength=162).double()
    # χ² with 161 degrees of freedom: mean 161, deviation √322 ≈ 18; planned at four deviations (1 in 10⁴).
    assert ((counts - 100).square() / 100).sum() < 161 + 4 * 18
    assert counts.min() > 0
