"""VGG networks (Simonyan and Zisserman 2015) with narrow fully connected layers, as in the paper."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from pamerge.errors import PamergeError
from pamerge.zoo._build import check_count, check_input_size, check_width, initialise, scaled

Stages = Sequence[Sequence[int]]
"""Channels of the 3×3 convolutions, stage by stage; max pooling by 2 (floor) follows each stage."""

VGG11: Stages = ((64,), (128,), (256, 256), (512, 512), (512, 512))
VGG16: Stages = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class VGG(nn.Module):
    """A VGG network with the original's layer names: ``conv1_1`` … ``conv5_3``, ``fc6`` … ``fc8``."""

    def __init__(
        self,
        stages: Stages,
        outputs: int,
        *,
        width: float = 1.0,
        fc: int = 512,
        batch_norm: bool = False,
        dropout: float = 0.5,
        input_size: tuple[int, int, int] = (3, 72, 72),
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise PamergeError(f"dropout must be a share from 0 to below 1, got {dropout!r}.")
        outputs, fc, width = check_count("outputs", outputs), check_count("fc", fc), check_width(width)
        channels, rows, columns = check_input_size(input_size, halvings=len(stages))
        self.features = nn.Sequential()
        for stage, stage_channels in enumerate(stages, start=1):
            for position, full_channels in enumerate(stage_channels, start=1):
                name, out_channels = f"{stage}_{position}", scaled(full_channels, width)
                # Batch norm has a shift of its own, so a bias in front of it would be dead weight.
                conv = nn.Conv2d(channels, out_channels, kernel_size=3, padding=1, bias=not batch_norm)
                self.features.add_module(f"conv{name}", conv)
                if batch_norm:
                    self.features.add_module(f"bn{name}", nn.BatchNorm2d(out_channels))
                self.features.add_module(f"relu{name}", nn.ReLU())
                channels = out_channels
            self.features.add_module(f"pool{stage}", nn.MaxPool2d(2))
            rows, columns = rows // 2, columns // 2
        self.flatten = nn.Flatten()
        output = nn.Linear(fc, outputs)
        self.classifier = nn.Sequential()
        self.classifier.add_module("fc6", nn.Linear(channels * rows * columns, fc))
        self.classifier.add_module("relu6", nn.ReLU())
        if dropout:
            self.classifier.add_module("dropout6", nn.Dropout(dropout))
        self.classifier.add_module("fc7", nn.Linear(fc, fc))
        self.classifier.add_module("relu7", nn.ReLU())
        if dropout:
            self.classifier.add_module("dropout7", nn.Dropout(dropout))
        self.classifier.add_module("fc8", output)
        initialise(self, output, generator)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (N, outputs) of images (N, channels, height, width)."""
        logits: torch.Tensor = self.classifier(self.flatten(self.features(x)))
        return logits


def vgg16(
    outputs: int,
    width: float = 1.0,
    fc: int = 512,
    batch_norm: bool = False,
    input_size: tuple[int, int, int] = (3, 72, 72),
    *,
    dropout: float = 0.5,
    generator: torch.Generator | None = None,
) -> VGG:
    """VGG-16: thirteen 3×3 convolutions in five stages, fc ``fc``, fc ``fc``, fc ``outputs``.

    ReLU follows every layer but the last, dropout both hidden fully connected layers. On 3×72×72 images
    it costs 3,112,200,684 FLOPs with ``fc=512`` and 20 outputs, and 3,110,120,433 with ``fc=128`` and 15
    outputs: the paper's numbers for CelebA and LFW.

    Args:
        outputs: Number of logits.
        width: Factor of the convolutions' channels (64 … 512 at 1); ``fc`` is not scaled.
        fc: Neurons of each hidden fully connected layer.
        batch_norm: Whether batch norm follows each convolution.
        input_size: (channels, height, width) of an image; at least 32 × 32.
        dropout: Share of the hidden fully connected neurons that is left out in training. Narrow layers, and few
            epochs, are better off with 0.
        generator: Source of the initial weights; torch's default one if ``None``.

    >>> vgg16(20, width=0.125)(torch.zeros(2, 3, 72, 72)).shape
    torch.Size([2, 20])
    """
    return VGG(
        VGG16,
        outputs,
        width=width,
        fc=fc,
        batch_norm=batch_norm,
        dropout=dropout,
        input_size=input_size,
        generator=generator,
    )
