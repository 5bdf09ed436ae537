"""Zipping: matching neurons of different networks and making them one."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.architectures import inputs, make_networks
from support.trained import digit_networks, digits
from torch import nn

import pamerge
from pamerge import MTZ, PAM, PamergeError, TaskSet
from pamerge.graph.layer_graph import in_head
from pamerge.merging.zip import coupling, functional_difference, match, shared_weights
from pamerge.tasks import all_subsets

QUICK = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 10**6)


def problem(seed: int, inputs: int = 4, neurons: int = 3) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    x_a, x_b = (torch.randn(50, inputs, generator=generator, dtype=torch.float64) for _ in range(2))
    w_a, w_b = (torch.randn(neurons, inputs, generator=generator, dtype=torch.float64) for _ in range(2))
    return w_a, w_b, x_a.T @ x_a / 50, x_b.T @ x_b / 50


def error(w: torch.Tensor, w_a: torch.Tensor, w_b: torch.Tensor, h_a: torch.Tensor, h_b: torch.Tensor) -> torch.Tensor:
    """The summed mean-square change of both neurons' outputs."""
    return (((w - w_a) @ h_a) * (w - w_a)).sum(1) + (((w - w_b) @ h_b) * (w - w_b)).sum(1)


@QUICK
@given(seeds)
def test_shared_weights_minimise_the_summed_layer_error(seed: int) -> None:
    w_a, w_b, h_a, h_b = problem(seed)
    found = shared_weights(w_a, w_b, h_a, h_b)
    w = ((w_a + w_b) / 2).clone().requires_grad_(True)
    optimizer = torch.optim.LBFGS([w], max_iter=200, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = error(w, w_a, w_b, h_a, h_b).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    torch.testing.assert_close(found, w.detach(), rtol=1e-4, atol=1e-5)


@QUICK
@given(seeds)
def test_the_functional_difference_is_half_of_the_least_error(seed: int) -> None:
    w_a, w_b, h_a, h_b = problem(seed)
    cost = functional_difference(w_a, w_b, h_a, h_b)
    for i in range(3):
        for j in range(3):
            pair = w_a[i : i + 1], w_b[j : j + 1]
            least = error(shared_weights(*pair, h_a, h_b), *pair, h_a, h_b)
            torch.testing.assert_close(2 * cost[i, j], least[0], rtol=1e-3, atol=1e-6)


@QUICK
@given(seeds)
def test_the_coupling_is_the_inverse_of_the_summed_inverses(seed: int) -> None:
    _, _, h_a, h_b = problem(seed)
    expected = torch.linalg.inv(torch.linalg.inv(h_a) + torch.linalg.inv(h_b))
    torch.testing.assert_close(coupling(h_a, h_b), expected, rtol=1e-4, atol=1e-5)


def test_the_matching_has_the_least_total_cost() -> None:
    cost = torch.tensor([[1.0, 2.0, 9.0], [1.0, 9.0, 9.0]])
    assert match(cost) == [(0, 1), (1, 0)]


def permuted(network: nn.Module, seed: int) -> nn.Module:
    """A LeNet-5 that computes the same with its neurons in another order."""
    generator, twin = torch.Generator().manual_seed(seed), copy.deepcopy(network)
    layers = [
        (network.conv1, twin.conv1),
        (network.conv2, twin.conv2),
        (network.fc3, twin.fc3),
        (network.fc4, twin.fc4),
    ]
    before = torch.arange(1)
    with torch.no_grad():
        for old, new in layers:
            order = torch.randperm(len(old.weight), generator=generator)
            columns = old.weight.view(len(old.weight), len(before), -1)[order][:, before]
            new.weight.copy_(columns.reshape(new.weight.shape))
            new.bias.copy_(old.bias[order])
            before = order
        twin.fc5.weight.copy_(network.fc5.weight[:, before])
    return twin.eval()


def test_a_network_zipped_with_permuted_copies_of_itself_gives_the_same_outputs() -> None:
    original = make_networks("lenet5", 1)["A"]
    networks = {"A": original, "B": permuted(original, 1), "C": permuted(original, 2)}
    x = inputs("lenet5", 16)
    network = pamerge.merge(networks, [x], MTZ(steps=0))
    for task in networks:
        torch.testing.assert_close(network(x)[task], original(x), rtol=1e-4, atol=1e-5)
    assert network.flops("A") == pamerge.merge({"A": original}, [x], pamerge.Separate()).flops()


@pytest.mark.parametrize("name", ["small_resnet", "vgg16_bn", "resnet18", "mobilenetv2", "densenet", "seresnet"])
def test_every_architecture_can_be_zipped_with_a_copy_of_itself(name: str) -> None:
    original = make_networks(name, 1)["A"]
    x = inputs(name, 8)
    network = pamerge.merge({"A": original, "B": copy.deepcopy(original)}, [x], MTZ(steps=0))
    network.check()
    torch.testing.assert_close(network(x)["B"], original(x), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("name", "count"), [("lenet5", 3), ("small_resnet", 2), ("densenet", 2), ("mobilenetv2", 2)])
def test_fully_zipped_every_subset_costs_the_same_apart_from_the_heads(name: str, count: int) -> None:
    networks = make_networks(name, count)
    x = inputs(name, 8)
    network = pamerge.merge(networks, [x], MTZ(steps=0))
    network.check()
    heads = in_head(network.structure.nodes)
    everything = {layer: cost for layer, cost in network.layer_flops().items() if layer not in heads}
    for tasks in all_subsets(network.tasks):
        assert {layer: cost for layer, cost in network.layer_flops(tasks).items() if layer not in heads} == everything


def test_partial_sharing_leaves_exclusive_neurons() -> None:
    networks = make_networks("lenet5", 2)
    network = pamerge.merge(networks, [inputs("lenet5", 8)], MTZ(share=0.5, steps=0))
    network.check()
    for name, neurons in {"conv1": 6, "conv2": 16, "fc3": 120, "fc4": 84}.items():
        sizes = {str(tasks): len(found) for tasks, found in network.junctions[name].groups.items()}
        assert sizes == {"A": neurons // 2, "B": neurons // 2, "A+B": neurons // 2}
    assert network.flops("A") < network.flops()


def test_neurons_of_a_wider_network_stay_exclusive() -> None:
    network = pamerge.merge(make_networks("lenet5 of two widths", 2), [inputs("lenet5 of two widths", 8)], MTZ(steps=0))
    network.check()
    groups = network.junctions["0"].groups
    assert {str(tasks): len(found) for tasks, found in groups.items()} == {"A+B": 6, "B": 2}


def test_zipping_trained_networks_with_fine_tuning_keeps_them_useful() -> None:
    splits = digits()
    objectives = {"A": pamerge.MultiLabel(), "B": pamerge.MultiLabel()}
    train = splits.train.loader(64, shuffle=torch.Generator().manual_seed(0))
    network = pamerge.merge(
        digit_networks(), splits.train.loader(500), MTZ(steps=120, lr=1e-3), objectives=objectives, train=train
    )
    found = pamerge.evaluate(network, splits.validation.loader(500), objectives)
    before = pamerge.evaluate(digit_networks(), splits.validation.loader(500), objectives)
    assert all(found[task] > before[task] - 0.03 for task in found)
    assert [len(layer.alone) for layer in network.merging.zipped] == [0, 0, 0, 0]


@pytest.mark.filterwarnings("ignore::pamerge.PamergeWarning")  # 64 samples are few for the widest layer
def test_pam_with_zip_starts_smaller_and_computes_nearly_the_same() -> None:
    original = make_networks("lenet5", 1)["A"]
    x = inputs("lenet5", 64)
    labels = {task: (torch.rand(64, 3, generator=torch.Generator().manual_seed(1)) < 0.5).float() for task in "AB"}
    networks = {"A": original, "B": permuted(original, 1)}
    plain, zipped = (pamerge.merge(networks, [(x, labels)], PAM(alpha=-1, zip=limit)) for limit in (None, 0.01))
    assert zipped.flops() < plain.flops() / 3
    torch.testing.assert_close(zipped(x)["B"], plain(x)["B"], rtol=1e-3, atol=1e-4)
    assert set(zipped.junctions["fc4"].groups) == {TaskSet("AB")}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MTZ(share=2), "share=2; expected a share from 0 to 1"),
        (lambda: MTZ(steps=-1), "steps=-1"),
        (MTZ, "MTZ fine-tunes after each layer and has no training data"),
        (lambda: PAM(zip=-1), "zip=-1; expected a number from 0"),
    ],
)
def test_bad_settings_are_named(make, message: str) -> None:
    x = inputs("lenet5", 8)
    labels = {task: torch.zeros(8, 3) for task in "AB"}
    with pytest.raises(PamergeError, match=message):
        pamerge.merge(make_networks("lenet5", 2), [(x, labels)], make())
