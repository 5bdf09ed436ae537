"""LeNet-5 as in the paper's experiments on Fashion-MNIST."""

from __future__ import annotations

import torch
from torch import nn

from pamerge.zoo._build import check_count, check_input_size, initialise


class LeNet5(nn.Module):
    """Two 5×5 convolutions, each followed by ReLU and pooling, and three fully connected layers."""

    def __init__(
        self, outputs: int, input_size: tuple[int, int, int], generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        outputs = check_count("outputs", outputs)
        channels, height, width = check_input_size(input_size, halvings=2)
        self.conv1 = nn.Conv2d(channels, 6, kernel_size=5, padding=2)
        self.relu1 = nn.ReLU()
        self.pool1 = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(6, 16, kernel_size=5, padding=2)
        self.relu2 = nn.ReLU()
        self.pool2 = nn.MaxPool2d(2)
        self.flatten = nn.Flatten()
        self.fc3 = nn.Linear(16 * (height // 4) * (width // 4), 120)
        self.relu3 = nn.ReLU()
        self.fc4 = nn.Linear(120, 84)
        self.relu4 = nn.ReLU()
        self.fc5 = nn.Linear(84, outputs)
        initialise(self, self.fc5, generator)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (N, outputs) of images (N, channels, height, width)."""
        x = self.pool1(self.relu1(self.conv1(x)))
        x = self.flatten(self.pool2(self.relu2(self.conv2(x))))
        x = self.relu3(self.fc3(x))
        x = self.relu4(self.fc4(x))
        logits: torch.Tensor = self.fc5(x)
        return logits


def lenet5(
    outputs: int,
    input_size: tuple[int, int, int] = (1, 124, 496),
    *,
    generator: torch.Generator | None = None,
) -> LeNet5:
    """LeNet-5: conv 6 and conv 16 (5×5, 'same'), fc 120, fc 84, fc ``outputs``.

    ReLU follows every layer but the last, max pooling by 2 each convolution.
    With 5 outputs and the default input it costs 106,422,711 FLOPs, the paper's number.

    Args:
        outputs: Number of logits.
        input_size: (channels, height, width) of an image.
        generator: Source of the initial weights; torch's default one if ``None``.

    >>> lenet5(5, input_size=(1, 28, 112))(torch.zeros(2, 1, 28, 112)).shape
    torch.Size([2, 5])
    """
    return LeNet5(outputs, input_size, generator)
