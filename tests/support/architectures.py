"""The architectures that every part of pamerge is tested with, small enough for many tests."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from pytorchcv.models.densenet import DenseNet
from pytorchcv.models.mobilenetv2 import MobileNetV2
from pytorchcv.models.resnet_cifar import CIFARResNet, resnet20_cifar10
from pytorchcv.models.seresnet import SEResNet
from torch import Tensor, nn

from pamerge import zoo
from pamerge.graph import align, capture
from pamerge.merging import Material
from pamerge.zoo import vgg

TASKS = ("A", "B", "C", "D", "E")


@dataclass(frozen=True)
class Architecture:
    """How to make the network of the i-th task, and what it takes."""

    make: Callable[[int], nn.Module]
    input_size: tuple[int, ...]
    task_counts: tuple[int, ...] = (2, 3)


def _outputs(i: int) -> int:
    return 3 + i


def _any_size(net: nn.Module) -> nn.Module:
    """These networks end with a 7×7 pooling made for 224×224 images."""
    net.features.final_pool = nn.AdaptiveAvgPool2d(1)
    return net


def _mobilenet(i: int, width: int = 8) -> nn.Module:
    channels = [[width], [width * 2, width * 2], [width * 3]]
    net = MobileNetV2(channels, width, 40, remove_exp_conv=False, in_size=(32, 32), num_classes=_outputs(i))
    return _any_size(net)


def _densenet(i: int, growth: int = 4) -> nn.Module:
    channels = [[8 + growth, 8 + 2 * growth], [4 + 2 * growth, 4 + 3 * growth]]
    return _any_size(DenseNet(channels, 8, in_size=(32, 32), num_classes=_outputs(i)))


def _seresnet(i: int, width: int = 16) -> nn.Module:
    net = SEResNet(
        [[width, width], [2 * width]],
        width,
        bottleneck=False,
        conv1_stride=False,
        in_size=(32, 32),
        num_classes=_outputs(i),
    )
    return _any_size(net)


def _cifar_resnet(i: int, width: int = 6, blocks: int = 2) -> nn.Module:
    channels = [[width * 2**stage] * blocks for stage in range(3)]
    return CIFARResNet(channels, width, bottleneck=False, in_size=(32, 32), num_classes=_outputs(i))


OURS = {
    "lenet5": Architecture(lambda i: zoo.lenet5(_outputs(i), (1, 28, 112)), (1, 28, 112), (2, 3, 5)),
    "vgg16": Architecture(lambda i: zoo.vgg16(_outputs(i), 0.125, fc=32, input_size=(3, 32, 32)), (3, 32, 32)),
    "vgg16_bn": Architecture(
        lambda i: zoo.vgg16(_outputs(i), 0.125, fc=32, batch_norm=True, input_size=(3, 32, 32)), (3, 32, 32)
    ),
    "resnet18": Architecture(lambda i: zoo.resnet18(_outputs(i), width=0.125), (3, 40, 40)),
    "resnet34": Architecture(lambda i: zoo.resnet34(_outputs(i), width=0.125), (3, 40, 40), (2,)),
    "small_resnet": Architecture(_cifar_resnet, (3, 32, 32), (2, 3, 5)),
}
OTHERS = {
    "resnet20_cifar10": Architecture(lambda i: resnet20_cifar10(), (3, 32, 32), (2,)),
    "mobilenetv2": Architecture(_mobilenet, (3, 32, 32)),
    "seresnet": Architecture(_seresnet, (3, 32, 32)),
    "densenet": Architecture(_densenet, (3, 32, 32)),
}
UNEQUAL = {
    "lenet5 of two widths": Architecture(lambda i: _wider_lenet(i), (1, 28, 28), (2,)),
    "vgg16 of two widths": Architecture(
        lambda i: zoo.vgg16(_outputs(i), (0.125, 0.1875)[i], fc=(32, 24)[i], input_size=(3, 32, 32)),
        (3, 32, 32),
        (2,),
    ),
    "resnet18 of two widths": Architecture(lambda i: zoo.resnet18(_outputs(i), (0.125, 0.1875)[i]), (3, 40, 40), (2,)),
    "resnet34 of two widths": Architecture(lambda i: zoo.resnet34(_outputs(i), (0.125, 0.1875)[i]), (3, 40, 40), (2,)),
    "vgg11 and vgg16": Architecture(
        lambda i: (
            zoo.vgg16(_outputs(i), 0.125, fc=32, input_size=(3, 32, 32))
            if i
            else vgg.VGG(vgg.VGG11, _outputs(i), width=0.125, fc=32, input_size=(3, 32, 32))
        ),
        (3, 32, 32),
        (2,),
    ),
    "resnet18 and resnet34": Architecture(
        lambda i: (zoo.resnet18, zoo.resnet34)[i](_outputs(i), width=0.125), (3, 40, 40), (2,)
    ),
    "small resnets of three depths": Architecture(lambda i: _cifar_resnet(i, blocks=1 + i), (3, 32, 32), (3,)),
    "mobilenetv2 of two widths": Architecture(lambda i: _mobilenet(i, (8, 10)[i]), (3, 32, 32), (2,)),
    "densenet of two widths": Architecture(lambda i: _densenet(i, (4, 6)[i]), (3, 32, 32), (2,)),
    "seresnet of two widths": Architecture(lambda i: _seresnet(i, (16, 32)[i]), (3, 32, 32), (2,)),
}
ARCHITECTURES = {**OURS, **OTHERS, **UNEQUAL}
CASES = [(name, tasks) for name, architecture in ARCHITECTURES.items() for tasks in architecture.task_counts]
SMALL_CASES = [
    ("lenet5", 2),
    ("small_resnet", 2),
    ("small_resnet", 3),
    ("densenet", 2),
    ("seresnet", 2),
    ("mobilenetv2", 2),
]


def _wider_lenet(i: int) -> nn.Module:
    width = 6 + 2 * i
    return nn.Sequential(
        nn.Conv2d(1, width, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(2 * width * 49, 20 + i), nn.ReLU(), nn.Linear(20 + i, _outputs(i)),
    )  # fmt: skip


def make_networks(name: str, count: int) -> dict[str, nn.Module]:
    """Networks with lively random weights and batch-norm statistics, in eval mode."""
    generator = torch.Generator().manual_seed(len(name) + count)
    networks = {task: ARCHITECTURES[name].make(i) for i, task in enumerate(TASKS[:count])}
    for network in networks.values():
        for parameter in network.parameters():
            if parameter.dim() > 1:
                fan_in = parameter[0].numel()
                parameter.data = torch.randn(parameter.shape, generator=generator) * (1.5 / fan_in) ** 0.5
            else:
                parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator)
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean = 0.1 * torch.randn(module.num_features, generator=generator)
                module.running_var = 0.5 + torch.rand(module.num_features, generator=generator)
        network.eval()
    return networks


@functools.cache
def material(name: str, count: int) -> Material:
    """The captured and aligned networks of an architecture, once for all tests."""
    networks = make_networks(name, count)
    graphs = {task: capture(network, inputs(name)) for task, network in networks.items()}
    return Material(networks, graphs, align(graphs), [inputs(name)])


def inputs(name: str, batch: int = 3) -> Tensor:
    """A batch of inputs for an architecture."""
    return torch.randn(batch, *ARCHITECTURES[name].input_size, generator=torch.Generator().manual_seed(7))
