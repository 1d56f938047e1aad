"""Images on the device: kept as pixels, standardised and augmented minibatch by minibatch.

A minibatch is one gather, one crop by indices and one multiply-add, whatever its size: no processes, no loop over
images. Pixels are stored with the channels last, which is also how convolutions want them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tacit._util.random_generators import generator
from tacit.studies.data.facts import Facts

PADDING = 4  # pixels at the published size of the images


@dataclass(frozen=True)
class Images:
    """Pixels (N, H, W, C); an image is standardised as pixels · scale + offset."""

    pixels: Tensor
    scale: Tensor  # (N, 1, 1, 1): each image its own; or (1, 1, 1, C): each channel its own
    offset: Tensor

    def __len__(self) -> int:
        return len(self.pixels)

    def take(self, examples: Tensor, change: Callable[[Tensor], Tensor] = lambda pixels: pixels) -> Tensor:
        """Standardised images (rows, C, H, W) of these numbers, their pixels changed before."""
        pixels = change(self.pixels.index_select(0, examples))
        scale, offset = self.scale, self.offset
        if len(scale) == len(self.pixels) > 1:
            scale, offset = scale.index_select(0, examples), offset.index_select(0, examples)
        return _standardised(pixels, scale, offset)

    def between(self, start: int, stop: int) -> Tensor:
        """Standardised images of a range, as they are."""
        own = len(self.scale) == len(self.pixels)
        scale, offset = (self.scale[start:stop], self.offset[start:stop]) if own else (self.scale, self.offset)
        return _standardised(self.pixels[start:stop], scale, offset)


def prepare(
    raw: np.ndarray, facts: Facts, *, size: int | None = None, device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> Images:  # fmt: skip
    """Raw images, uint8 (N, C, H, W), on the device; with `size`, averaged over squares of pixels to that size.

    Per image: (x − mean) / max(deviation, 1/√pixels), over all pixels of the image. Per channel: the dataset's
    published mean and deviation, for pixels between 0 and 1; averaging keeps the mean, and the deviation is not
    measured anew.
    """
    pixels = torch.from_numpy(np.array(raw, copy=True))
    if size is not None:
        side = pixels.shape[-1] // size  # in parts: all images as floats would take four times their memory
        pixels = torch.cat([F.avg_pool2d(part.to(dtype), side) for part in pixels.split(4096)])
    pixels = pixels.permute(0, 2, 3, 1).contiguous()
    scale, offset = _factors(pixels, facts)
    return Images(pixels.to(device), scale.to(dtype).to(device), offset.to(dtype).to(device))


def padding(size: int | None, published: int) -> int:
    """4 pixels at the published size, in proportion at others, at least 1.

    >>> padding(None, 32), padding(16, 32), padding(7, 28)
    (4, 2, 1)
    """
    return PADDING if size is None else max(1, PADDING * size // published)


def crops_and_flips(
    images: Images, seeds: Sequence[int], *, batch_size: int, padding: int
) -> Callable[[Tensor, int], Tensor]:
    """(examples, position) → images that are cropped and mirrored at random."""

    def take(examples: Tensor, position: int) -> Tensor:
        crops = draw_crops(batch_size, seeds, padding=padding, position=position)
        return images.take(examples, lambda pixels: crop_and_flip(pixels, *crops, padding=padding))

    return take


def draw_crops(rows: int, seeds: Sequence[int], *, padding: int, position: int) -> tuple[Tensor, Tensor, Tensor]:
    """Where each of `rows` images is cut out of its padded self, and whether it is mirrored: top, left, flipped.

    For every seed, one after the other: a pure function of (seed, position). Offsets are uniform over all 2p + 1 places
    in both directions, mirroring is a fair coin.
    """
    drawn = []
    for seed in seeds:
        draws = generator(seed, "augment", position)
        places = torch.randint(2 * padding + 1, (2, rows), generator=draws)
        drawn.append(torch.cat([places, torch.randint(2, (1, rows), generator=draws)]))
    top, left, flipped = torch.cat(drawn, dim=1)
    return top, left, flipped.bool()


def crop_and_flip(pixels: Tensor, top: Tensor, left: Tensor, flipped: Tensor, *, padding: int) -> Tensor:
    """Pixels (rows, H, W, C), padded with black, cut at (top, left), and mirrored left to right where asked."""
    rows, height, width, _ = pixels.shape
    padded = F.pad(pixels, (0, 0, padding, padding, padding, padding))
    across = torch.arange(width).expand(rows, -1)
    across = torch.where(flipped[:, None], width - 1 - across, across) + left[:, None]
    down = torch.arange(height) + top[:, None]
    # One index per pixel into all pixels of the minibatch: the fastest of the ways that were tried.
    wide = width + 2 * padding
    start = torch.arange(rows) * (height + 2 * padding) * wide
    flat = (start[:, None, None] + down[:, :, None] * wide + across[:, None, :]).reshape(-1)
    picked = padded.reshape(-1, pixels.shape[3]).index_select(0, flat.to(pixels.device))
    return picked.view(pixels.shape)


def _standardised(pixels: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    return torch.addcmul(offset, pixels.to(scale.dtype), scale).permute(0, 3, 1, 2)


def _factors(pixels: Tensor, facts: Facts) -> tuple[Tensor, Tensor]:
    """Scale and offset, in float64."""
    if facts.standardisation == "per_channel":
        mean = 255 * torch.tensor(facts.mean, dtype=torch.float64).view(1, 1, 1, -1)
        deviation = 255 * torch.tensor(facts.deviation, dtype=torch.float64).view(1, 1, 1, -1)
    else:
        flat = pixels.reshape(len(pixels), -1)
        mean = torch.cat([part.double().mean(1) for part in flat.split(4096)])
        deviation = torch.cat([part.double().std(1, correction=0) for part in flat.split(4096)])
        mean, deviation = (each.view(-1, 1, 1, 1) for each in (mean, deviation))
        deviation = deviation.clamp(min=flat.shape[1] ** -0.5)
    return 1 / deviation, -mean / deviation
