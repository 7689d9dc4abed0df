"""Transforms of training batches, drawn from a client's own stream: crop and flip for images."""

import torch
from torch import Tensor


def random_crop(x: Tensor, generator: torch.Generator, padding: int = 4) -> Tensor:
    """Images (B, C, H, W), padded with zeros and cut to their size at a random place.

    >>> images = torch.ones(2, 3, 8, 8)
    >>> random_crop(images, torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3, 8, 8])
    """
    height, width = x.shape[-2:]
    padded = torch.nn.functional.pad(x, (padding,) * 4)
    tops, lefts = torch.randint(2 * padding + 1, (2, len(x)), generator=generator)
    rows = tops[:, None] + torch.arange(height)  # (B, H)
    columns = lefts[:, None] + torch.arange(width)
    image = torch.arange(len(x))[:, None, None]
    cut = padded.movedim(1, -1)[image, rows[:, :, None], columns[:, None, :]]
    return cut.movedim(-1, 1).contiguous()


def random_flip(x: Tensor, generator: torch.Generator) -> Tensor:
    """Images (B, C, H, W), each mirrored left to right with probability 1/2."""
    mirrored = torch.rand(len(x), generator=generator) < 0.5
    return torch.where(mirrored.view(-1, 1, 1, 1), x.flip(-1), x)


def crop_and_flip(x: Tensor, generator: torch.Generator) -> Tensor:
    """The usual augmentation of CIFAR: a random crop after padding by 4, and a random flip."""
    return random_flip(random_crop(x, generator), generator)
