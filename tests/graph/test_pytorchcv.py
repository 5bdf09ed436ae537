"""Published architectures as their own factories make them, at full depth and width; only the images are small.

The conformance suite has the same architectures cut down.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from pytorchcv.models.densenet import densenet121
from pytorchcv.models.mobilenetv2 import mobilenetv2_w1
from pytorchcv.models.seresnet import seresnet18
from support.merged import (
    all_shared,
    at_random,
    expect_originals,
    expect_subsets_agree,
    material_of,
    with_lively_weights,
)
from torch import nn

from pamerge import Separate


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "hidden_layers"),
    [(mobilenetv2_w1, 36), (seresnet18, 36), (densenet121, 120)],
    ids=["mobilenetv2_w1", "seresnet18", "densenet121"],
)
def test_full_networks_are_captured_and_merged_and_all_subsets_are_right(
    make: Callable[..., nn.Module], hidden_layers: int
) -> None:
    networks = {task: make(num_classes=3 + i) for i, task in enumerate("AB")}
    for network in networks.values():  # made for 224×224 images, they end with a 7×7 pooling
        network.features.final_pool = nn.AdaptiveAvgPool2d(1)
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(6))
    with torch.no_grad():
        source = material_of(with_lively_weights(networks), images)
        assert len(source.alignment.matched_layers("A", "B")) == hidden_layers
        for merged in (Separate().merge(source), all_shared(source)):
            expect_originals(merged, networks, images)
            expect_subsets_agree(merged, images)
        expect_subsets_agree(at_random(source), images)
