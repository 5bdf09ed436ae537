from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from pamerge import PamergeError
from pamerge.zoo import lenet5, resnet18, resnet34, vgg16
from pamerge.zoo.vgg import VGG, VGG11

SMALL: dict[str, tuple[Callable[..., nn.Module], tuple[int, int, int]]] = {
    "lenet5": (lambda n, **kw: lenet5(n, input_size=(1, 28, 112), **kw), (1, 28, 112)),
    "vgg16": (lambda n, **kw: vgg16(n, width=0.125, fc=16, **kw), (3, 72, 72)),
    "vgg16_bn": (lambda n, **kw: vgg16(n, width=0.125, fc=16, batch_norm=True, **kw), (3, 72, 72)),
    "vgg11": (lambda n, **kw: VGG(VGG11, n, width=0.125, fc=16, **kw), (3, 72, 72)),
    "resnet18": (lambda n, **kw: resnet18(n, width=0.125, **kw), (3, 72, 72)),
    "resnet34": (lambda n, **kw: resnet34(n, width=0.125, **kw), (3, 72, 72)),
}


def paper_flops(network: nn.Module, input_size: tuple[int, int, int]) -> int:
    """torch counts 2·MAC; the paper takes one addition less for each output of a weighted layer."""
    outputs = 0

    def count(_module: nn.Module, _inputs: object, output: torch.Tensor) -> None:
        nonlocal outputs
        outputs += output.numel()

    hooks = [m.register_forward_hook(count) for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(torch.zeros(1, *input_size, device=next(network.parameters()).device))
    for hook in hooks:
        hook.remove()
    return int(counter.get_total_flops()) - outputs


@pytest.mark.parametrize(
    ("make", "input_size", "flops"),
    [
        (lambda: lenet5(5), (1, 124, 496), 106_422_711),
        (lambda: vgg16(20), (3, 72, 72), 3_112_200_684),
        (lambda: vgg16(15, fc=128), (3, 72, 72), 3_110_120_433),
        (lambda: vgg16(15, fc=128, batch_norm=True), (3, 72, 72), 3_110_120_433),
        (lambda: resnet18(1000), (3, 224, 224), 3_625_661_976),
        (lambda: resnet34(1000), (3, 224, 224), 7_323_783_704),
    ],
    ids=["lenet5", "vgg16-celeba", "vgg16-lfw", "vgg16-bn", "resnet18", "resnet34"],
)
def test_flops_are_the_golden_values(
    make: Callable[[], nn.Module], input_size: tuple[int, int, int], flops: int
) -> None:
    with torch.device("meta"):
        network = make()
    assert paper_flops(network, input_size) == flops


@pytest.mark.parametrize(("make", "parameters"), [(resnet18, 11_689_512), (resnet34, 21_797_672)])
def test_resnets_have_the_published_number_of_parameters(make: Callable[[int], nn.Module], parameters: int) -> None:
    with torch.device("meta"):
        network = make(1000)
    assert sum(p.numel() for p in network.parameters()) == parameters


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("outputs", [1, 7])
def test_a_batch_becomes_one_row_of_logits_a_sample(name: str, outputs: int) -> None:
    make, input_size = SMALL[name]
    network = make(outputs).eval()
    assert network(torch.randn(3, *input_size)).shape == (3, outputs)


@pytest.mark.parametrize("name", SMALL)
def test_a_generator_decides_all_initial_weights(name: str) -> None:
    make, _ = SMALL[name]
    torch.manual_seed(1)
    first = make(4, generator=torch.Generator().manual_seed(7)).state_dict()
    torch.manual_seed(2)
    again = make(4, generator=torch.Generator().manual_seed(7)).state_dict()
    other = make(4, generator=torch.Generator().manual_seed(8)).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("name", SMALL)
def test_an_untrained_network_passes_signal_and_gradients_through_every_layer(name: str) -> None:
    make, input_size = SMALL[name]
    network = make(4, generator=torch.Generator().manual_seed(0))
    logits = network(torch.randn(8, *input_size, generator=torch.Generator().manual_seed(1)))
    logits.square().sum().backward()
    assert 0.05 < logits.std() < 20
    for parameter_name, parameter in network.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.abs().sum() > 0, parameter_name


@pytest.mark.parametrize(
    ("network", "channels"),
    [
        (vgg16(2, width=0.25, fc=8), {"features.conv1_1": 16, "features.conv5_3": 128, "classifier.fc6": 8}),
        (resnet18(2, width=0.5), {"conv1": 32, "layer1.0.conv1": 32, "layer4.1.conv2": 256}),
        (resnet34(2, width=0.001), {"conv1": 1, "layer4.2.conv2": 1}),
    ],
    ids=["vgg16", "resnet18", "at least one channel"],
)
def test_width_scales_the_channels_of_convolutions(network: nn.Module, channels: dict[str, int]) -> None:
    layers = dict(network.named_modules())
    assert {name: layers[name].weight.shape[0] for name in channels} == channels


def test_max_pooling_rounds_down() -> None:
    network = vgg16(2, width=0.125, fc=8, input_size=(3, 72, 90))
    assert network.classifier.fc6.in_features == 64 * 2 * 2
    assert network(torch.zeros(1, 3, 72, 90)).shape == (1, 2)


def test_vgg_drops_out_only_in_training() -> None:
    network, x = vgg16(2, width=0.125, fc=8), torch.randn(2, 3, 72, 72)
    assert not torch.equal(network(x), network(x))
    network.eval()
    assert torch.equal(network(x), network(x))


def test_vgg_without_dropout_is_the_same_in_training_and_has_no_such_layers() -> None:
    network, x = vgg16(2, width=0.125, fc=8, dropout=0.0), torch.randn(2, 3, 72, 72)
    assert torch.equal(network(x), network(x))
    assert not any(isinstance(module, nn.Dropout) for module in network.modules())


def test_batch_norm_follows_each_convolution_which_then_has_no_bias() -> None:
    network = vgg16(2, width=0.125, fc=8, batch_norm=True)
    convs = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(convs) == len(norms) == 13
    assert all(conv.bias is None for conv in convs)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lenet5(0), r"outputs must be an integer of at least 1, got 0"),
        (lambda: lenet5(2.0), r"outputs must be an integer of at least 1, got 2\.0"),
        (
            lambda: lenet5(5, input_size=(28, 28)),
            r"input_size must be \(channels, height, width\), got \(28, 28\)",
        ),
        (lambda: lenet5(5, input_size=(1, 3, 28)), r"input_size \(1, 3, 28\) is too small.*at least 4"),
        (
            lambda: lenet5(5, input_size=(0, 28, 28)),
            r"input_size: each entry must be an integer of at least 1, got 0",
        ),
        (lambda: vgg16(True), r"outputs must be an integer of at least 1, got True"),
        (lambda: vgg16(5, fc=0), r"fc must be an integer of at least 1, got 0"),
        (lambda: vgg16(5, width=0), r"width must be a positive number .* got 0"),
        (lambda: vgg16(5, dropout=1.0), r"dropout must be a share from 0 to below 1, got 1\.0"),
        (
            lambda: vgg16(5, input_size=(3, 31, 72)),
            r"input_size \(3, 31, 72\) is too small.*5 times.*at least 32",
        ),
        (lambda: resnet18(5, width=math.nan), r"width must be a positive number .* got nan"),
        (lambda: resnet18(5, width="half"), r"width must be a positive number .* got 'half'"),
        (lambda: resnet34(-1), r"outputs must be an integer of at least 1, got -1"),
    ],
)
def test_a_bad_parameter_is_named(call: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(PamergeError, match=message):
        call()
