"""Structures that other people's networks are made of, each merged with another of its kind in every style."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.merged import (
    all_shared,
    at_random,
    expect_conformity,
    expect_originals,
    expect_subsets_agree,
    material_of,
    with_lively_weights,
)
from torch import Tensor, nn
from torch.nn import functional

from pamerge import Assigned, Separate, TaskSet
from pamerge.network.network import Junction


def image(*space: int) -> Tensor:
    return torch.randn(2, 3, *space, generator=torch.Generator().manual_seed(5))


def conv(inputs: int, outputs: int, kernel: int = 3, **options: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, **options)


class SqueezeExcite(nn.Module):
    """Four ways to write it: with 1×1 convolutions, with view, with unsqueeze and expand_as, with a pooled mean."""

    def __init__(self, spelling: str) -> None:
        super().__init__()
        self.spelling = spelling
        self.stem, self.out = conv(3, 6), conv(6, 2, 1)
        if spelling == "convolutions":
            self.down, self.up = nn.Conv2d(6, 3, 1), nn.Conv2d(3, 6, 1)
        else:
            self.down, self.up = nn.Linear(6, 3), nn.Linear(3, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        batch, channels = x.shape[:2]
        if self.spelling == "convolutions":
            gate = self.up(self.down(functional.adaptive_avg_pool2d(x, 1)).relu()).sigmoid()
        else:
            gate = self.up(self.down(x.mean([2, 3])).relu()).sigmoid()
            gate = gate.view(batch, channels, 1, 1) if self.spelling == "view" else gate[:, :, None, None]
            gate = gate.expand_as(x) if self.spelling == "expand" else gate
        return self.out(x * gate).mean((2, 3))


@pytest.mark.parametrize("spelling", ["convolutions", "view", "unsqueeze", "expand"])
def test_squeeze_and_excitation(spelling: str) -> None:
    expect_conformity(with_lively_weights({task: SqueezeExcite(spelling) for task in "AB"}), image(5, 5))


class Depthwise(nn.Module):
    def __init__(self, multiplier: int, width: int = 4) -> None:
        super().__init__()
        wide = width * multiplier
        self.stem, self.deep = conv(3, width), conv(width, wide, groups=width)
        self.norm, self.again = nn.BatchNorm2d(wide), conv(wide, wide, groups=wide)
        self.point, self.out = conv(wide, 5, 1), nn.Linear(5 * 4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.again(self.norm(self.deep(self.stem(x).relu()))).relu()
        return self.out(functional.max_pool2d(self.point(x), 2).flatten(1))


@pytest.mark.parametrize("multiplier", [1, 3])
def test_depthwise_convolutions_also_with_a_multiplier(multiplier: int) -> None:
    networks = with_lively_weights({"A": Depthwise(multiplier), "B": Depthwise(multiplier, width=5)})
    source = expect_conformity(networks, image(4, 4))
    assert source.graphs["A"].nodes["deep"].width == multiplier
    assert source.alignment.matched_layers() == ["stem", "point"]


class PreActivation(nn.Module):
    """The batch norms sit on the stream, so that one and the same channel has parameters in several of them."""

    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        self.stem = conv(3, 5)
        self.blocks = nn.ModuleList(
            nn.ModuleList([nn.BatchNorm2d(5), conv(5, 4), nn.BatchNorm2d(4), conv(4, 5)]) for _ in range(blocks)
        )
        self.norm, self.fc = nn.BatchNorm2d(5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for first_norm, first, second_norm, second in self.blocks:
            y = first(first_norm(x).relu_())
            x = x + second(second_norm(y).relu_())
        return self.fc(self.norm(x).relu().mean((2, 3)))


def test_a_pre_activation_network() -> None:
    source = expect_conformity(with_lively_weights({task: PreActivation() for task in "ABC"}), image(5, 5))
    network = at_random(source)
    norms = [key for key, layout in network.layouts.items() if layout.node.name == "norm"]
    assert len(norms) > 1, "a batch norm on the stream is split into blocks"


class Dense(nn.Module):
    """Every layer reads all before it; a batch norm follows each concatenation."""

    def __init__(self, growth: int) -> None:
        super().__init__()
        widths = [4 + growth * i for i in range(3)]
        self.stem = conv(3, 4)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in widths)
        self.layers = nn.ModuleList(conv(width, growth) for width in widths[:-1])
        self.out = nn.Conv2d(widths[-1], 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        features = [self.stem(x)]
        for norm, layer in zip(self.norms, self.layers, strict=False):
            features.append(layer(norm(torch.cat(features, 1)).relu()))
        x = self.norms[-1](torch.cat(features, dim=1)).relu()
        return functional.avg_pool2d(self.out(x), x.shape[2:]).flatten(1)


def test_a_densely_connected_network() -> None:
    networks = with_lively_weights({"A": Dense(3), "B": Dense(2)})
    source = expect_conformity(networks, image(5, 5))
    assert source.alignment.matched_layers() == ["stem", "layers.0", "layers.1"]


def test_a_layer_whose_outputs_nobody_reads_any_more_disappears_from_a_concatenation() -> None:
    source = material_of(with_lively_weights({"A": Dense(3), "B": Dense(2)}), image(5, 5))
    network = Separate().merge(source)
    doomed = set(network.structure.nodes["layers.0"].channels.tolist())
    network.remove({j.name: sorted(doomed & set(j.task_sets())) for j in network.junctions.values() if not j.fixed})
    assert not len(network.structure.nodes["layers.0"].channels)
    assert not any(layout.node.name == "layers.0" for layout in network.layouts.values())
    expect_subsets_agree(network, image(5, 5))


class Encoder(nn.Module):
    """Down and up again with a transposed convolution, an interpolation and a concatenation: a small U-Net."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = conv(3, 4), conv(4, 6, stride=2)
        self.up, self.smooth = nn.ConvTranspose2d(6, 4, 2, stride=2), conv(8, 4)
        self.act, self.out = nn.PReLU(4), conv(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.act(self.down(x))
        up = self.up(self.deep(functional.pad(fine, (0, 1, 1, 0))))[:, :, :6, :6]
        x = self.smooth(torch.cat([fine, up], 1)).relu()
        return self.out(functional.interpolate(x, scale_factor=2, mode="bilinear"))


def test_an_encoder_and_decoder_with_an_image_as_its_output() -> None:
    expect_conformity(with_lively_weights({task: Encoder() for task in "AB"}), image(6, 6))


class Residual(nn.Module):
    def __init__(self, combine: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.stem, self.branch, self.fc = conv(3, 4), conv(4, 4), nn.Linear(4, 2)
        self.combine = combine

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.fc(self.combine(x, self.branch(x)).mean((2, 3)))


@pytest.mark.parametrize(
    "combine",
    [
        lambda x, y: y - x,
        lambda x, y: x - y,
        lambda x, y: torch.add(y, x, alpha=2),
        lambda x, y: y + x.mean((2, 3), keepdim=True),
        lambda x, y: y * x,
    ],
)
def test_a_branch_is_left_out_only_where_the_rest_is_still_the_sum(combine: Callable) -> None:
    """Here the branch has nothing to read; its neurons go back to their own tasks, and nothing changes."""
    networks = with_lively_weights({task: Residual(combine) for task in "AB"})

    def choose(junction: Junction) -> dict[int, TaskSet]:
        own = junction.task_sets()
        return own if "branch" in junction.feeds else dict.fromkeys(own, TaskSet("AB"))

    network = Assigned(choose).merge(material_of(networks, image(5, 5)))
    expect_originals(network, networks, image(5, 5))


class PaddedShortcut(nn.Module):
    """The shortcut of the first residual networks: every other pixel, with channels of zeros on both sides."""

    def __init__(self, front: int, end: int, width: int = 4) -> None:
        super().__init__()
        self.stem, self.one = conv(3, width), conv(width, width + front + end, stride=2)
        self.two, self.fc = conv(width + front + end, width + front + end), nn.Linear(width + front + end, 2)
        self.pads = (0, 0, 0, 0, front, end)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        y = self.two(self.one(x).relu())
        y += functional.pad(x[:, :, ::2, ::2], self.pads, "constant", 0)
        return self.fc(y.relu().mean((2, 3)))


@pytest.mark.parametrize(("front", "end"), [(2, 2), (0, 3)])
def test_a_shortcut_padded_with_channels_of_zeros(front: int, end: int) -> None:
    networks = with_lively_weights({"A": PaddedShortcut(front, end), "B": PaddedShortcut(front, end, width=5)})
    source = expect_conformity(networks, image(6, 6))
    assert source.alignment.matched_layers() == ["stem", "one", "two"]


class Split(nn.Module):
    """Halves that go different ways, as in many mobile networks; without the shuffle."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.stem, self.branch, self.deep = conv(3, width), conv(half, half, 1), conv(half, half, groups=half)
        self.fc = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.stem(x).chunk(2, dim=1)
        x = torch.cat([left, self.deep(self.branch(right).relu())], 1)
        one, rest = torch.split(x, [2, x.shape[1] - 2], 1)
        return self.fc(torch.cat([rest, one.tanh()], 1).mean((2, 3)))


def test_chunk_and_split_with_plain_ranges_match_whatever_the_width() -> None:
    source = expect_conformity(with_lively_weights({"A": Split(6), "B": Split(8)}), image(5, 5))
    assert source.alignment.matched_layers() == ["stem", "branch"]


class LayerScale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.branch, self.out = conv(3, 5), conv(5, 5, groups=5), conv(5, 2, 1)
        self.gamma, self.temperature = nn.Parameter(torch.ones(5)), nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.gamma.view(-1, 1, 1) * functional.gelu(self.branch(x))
        return (self.out(x).mean((2, 3)) / self.temperature).log_softmax(1)


def test_layer_scale_and_a_learned_temperature() -> None:
    expect_conformity(with_lively_weights({task: LayerScale() for task in "AB"}), image(5, 5))


class Normalised(nn.Module):
    """Brings the image to zero mean and unit variance itself, as exported networks often do."""

    def __init__(self, mean: float) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((1, 3, 1, 1), mean) + torch.arange(3.0).view(1, 3, 1, 1))
        self.register_buffer("std", torch.full((3, 1, 1), 0.5))
        self.stem, self.out = conv(3, 5), conv(5, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.stem((x - self.mean) / self.std).relu()).amax((2, 3))


def test_networks_with_the_same_normalisation_of_the_input_share_it() -> None:
    source = expect_conformity(with_lively_weights({task: Normalised(0.4) for task in "AB"}), image(5, 5))
    assert source.alignment.matched_layers() == ["stem"]


def test_networks_that_normalise_the_input_differently_keep_their_own() -> None:
    source = expect_conformity(with_lively_weights({"A": Normalised(0.4), "B": Normalised(0.6)}), image(5, 5))
    assert source.alignment.matched_layers() == []


class InputAgain(nn.Module):
    """The image itself is concatenated to deeper features."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.deep, self.out = conv(3, 4), conv(7, 5), conv(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.deep(torch.cat([self.stem(x).relu(), x], 1)).relu()
        return self.out(torch.cat([x * 0.5, y], 1)).mean((2, 3))


def test_the_input_may_be_concatenated_to_hidden_features() -> None:
    expect_conformity(with_lively_weights({task: InputAgain() for task in "AB"}), image(5, 5))


class Extractor(nn.Module):
    """Ends in a residual sum and a pooling: the stream's own channels are the output."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one, self.two = conv(3, 4), conv(4, 4), conv(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        x = (x + self.one(x)).relu()
        return functional.adaptive_avg_pool2d((x + self.two(x)).relu(), 1).flatten(1)


def test_a_network_may_end_in_its_residual_stream() -> None:
    expect_conformity(with_lively_weights({task: Extractor() for task in "AB"}), image(5, 5))


class OneDimension(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm = nn.Conv1d(3, 4, 3, padding=1), nn.BatchNorm1d(4)
        self.b, self.up = nn.Conv1d(4, 8, 3, groups=4), nn.ConvTranspose1d(8, 3, 2, stride=2)
        self.fc = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool1d(self.norm(self.a(x)).relu(), 2)
        return self.fc(functional.adaptive_avg_pool1d(self.up(self.b(x)), 1).squeeze(-1))


class ThreeDimensions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm = nn.Conv3d(3, 4, 3, padding=1), nn.BatchNorm3d(4)
        self.b, self.up = nn.Conv3d(4, 4, 3, groups=4), nn.ConvTranspose3d(4, 3, 2)
        self.fc = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.avg_pool3d(self.norm(self.a(x)).relu(), (1, 2, 1))
        return self.fc(self.up(self.b(x)).mean((2, 3, 4)))


class Features(nn.Module):
    """No space at all: linear layers and batch norms on vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b, self.c = nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        return self.c(x + self.b(self.norm(x).relu()))


@pytest.mark.parametrize(
    ("make", "space"), [(OneDimension, (12,)), (ThreeDimensions, (4, 6, 4)), (Features, ())], ids=["1-D", "3-D", "0-D"]
)
def test_the_same_in_other_numbers_of_dimensions(make: Callable[[], nn.Module], space: tuple[int, ...]) -> None:
    expect_conformity(with_lively_weights({task: make() for task in "AB"}), image(*space))


def test_dropout_works_when_the_merged_network_trains() -> None:
    network = nn.Sequential(conv(3, 50), nn.Dropout2d(0.5), conv(50, 4, 1), nn.Dropout(0.5), nn.Flatten())
    merged = all_shared(material_of(with_lively_weights({"A": network, "B": network}), image(4, 4)))
    seen = {}

    def look(junction: str, group: object, z: Tensor) -> Tensor:
        seen[junction] = z
        return z

    torch.manual_seed(0)
    merged.train()(image(4, 4), at_junction=look)
    silent = (seen["0"] == 0).flatten(2)
    assert 0.2 < silent.float().mean() < 0.8
    assert (silent.all(2) | ~silent.any(2)).all(), "feature dropout takes whole channels"
    assert not (merged.eval()(image(4, 4))["A"] == 0).any()
    assert Separate().merge(material_of({"A": network}, image(4, 4))).flops() > 0
