"""ResNet-18 and ResNet-34 (He et al. 2016).

The paper's FLOPs of its ResNets (994.00 M, 1115.06 M) fit no standard ResNet-18 or -34; these are the
standard networks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from pamerge.zoo._build import check_count, check_width, initialise, scaled


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut around them, which is a 1×1 convolution where the shape changes."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(channels, channels, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu2 = nn.ReLU()
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or in_channels != channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, channels, kernel_size=1, stride=stride, bias=False),
                nn.BatchNorm2d(channels),
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The stream after this block."""
        branch = self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x)))))
        stream: torch.Tensor = self.relu2(self.downsample(x) + branch)
        return stream


class ResNet(nn.Module):
    """A stem, four stages of basic blocks, global average pooling and one fully connected layer."""

    def __init__(
        self,
        blocks: Sequence[int],
        outputs: int,
        *,
        width: float = 1.0,
        channels: int = 3,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        outputs, width = check_count("outputs", outputs), check_width(width)
        stream = scaled(64, width)
        self.conv1 = nn.Conv2d(
            check_count("channels", channels), stream, kernel_size=7, stride=2, padding=3, bias=False
        )
        self.bn1 = nn.BatchNorm2d(stream)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        stages = []
        for stage, depth in enumerate(blocks):
            stage_channels = scaled(64 * 2**stage, width)
            strides = [1 if stage == 0 else 2] + [1] * (depth - 1)
            stage_blocks = []
            for stride in strides:
                stage_blocks.append(BasicBlock(stream, stage_channels, stride))
                stream = stage_channels
            stages.append(nn.Sequential(*stage_blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(stream, outputs)
        initialise(self, self.fc, generator)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (N, outputs) of images (N, channels, height, width) of any size."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: torch.Tensor = self.fc(self.flatten(self.avgpool(x)))
        return logits


def resnet18(outputs: int, width: float = 1.0, *, generator: torch.Generator | None = None) -> ResNet:
    """ResNet-18 for images with three channels.

    At full width, with 1000 outputs and on 3×224×224 images it costs 3,625,661,976 FLOPs.

    Args:
        outputs: Number of logits.
        width: Factor of all channels (64 … 512 at 1).
        generator: Source of the initial weights; torch's default one if ``None``.

    >>> resnet18(20, width=0.125)(torch.zeros(2, 3, 72, 72)).shape
    torch.Size([2, 20])
    """
    return ResNet((2, 2, 2, 2), outputs, width=width, generator=generator)


def resnet34(outputs: int, width: float = 1.0, *, generator: torch.Generator | None = None) -> ResNet:
    """ResNet-34 for images with three channels.

    At full width, with 1000 outputs and on 3×224×224 images it costs 7,323,783,704 FLOPs.

    Args:
        outputs: Number of logits.
        width: Factor of all channels (64 … 512 at 1).
        generator: Source of the initial weights; torch's default one if ``None``.

    >>> resnet34(20, width=0.125)(torch.zeros(2, 3, 72, 72)).shape
    torch.Size([2, 20])
    """
    return ResNet((3, 4, 6, 3), outputs, width=width, generator=generator)
