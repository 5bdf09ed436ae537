"""The running average of weights that a point of the pruning path is judged by."""

from __future__ import annotations

import pytest
import torch
from pruning.around import sample
from support.architectures import inputs, material
from training.small import merged

from pamerge.merging import Separate
from pamerge.pruning.averages import forget_averages, take_averages, update_averages
from pamerge.tasks import TaskSet
from pamerge.training.optimizer import rebuild_optimizer


def train(network, optimizer, numbers) -> list[dict[str, torch.Tensor]]:
    """A step towards nothing in particular for each number; returns the weights after each."""
    seen = []
    for number in numbers:
        optimizer.zero_grad()
        sum(output.square().mean() for output in network(inputs("lenet5")).values()).backward()
        optimizer.step()
        update_averages(optimizer, network, number)
        seen.append({name: p.detach().clone() for name, p in network.named_parameters()})
    return seen


@pytest.mark.parametrize(("number", "counted"), [(1, 1.0), (2, 1.0), (10, 0.2), (100, 0.02), (1000, 0.02)])
def test_the_average_is_over_the_latter_half_of_the_steps(number: int, counted: float) -> None:
    network = Separate().merge(material("lenet5", 2))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    first, second = train(network, optimizer, [1, number])
    take_averages(optimizer, network)
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(parameter.detach(), (1 - counted) * first[name] + counted * second[name])


def test_nothing_is_left_of_the_weights_before_the_training() -> None:
    """However early it ends: a lap that was to be longer must not be judged by weights from before it."""
    network = Separate().merge(material("lenet5", 2))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    train(network, optimizer, range(1, 4))
    for state in optimizer.state.values():
        state["average"].fill_(1e9)
    _, second, third, last = train(network, optimizer, range(1, 5))
    take_averages(optimizer, network)
    for name, parameter in network.named_parameters():
        expected = second[name] / 6 + third[name] / 3 + last[name] / 2
        torch.testing.assert_close(parameter.detach(), expected)


def test_the_average_follows_its_weights_through_a_removal() -> None:
    network = Separate().merge(material("lenet5", 2))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    train(network, optimizer, range(1, 4))
    old = dict(network.named_parameters())
    averages = {name: optimizer.state[p]["average"].clone() for name, p in old.items()}
    gone = next(iter(network.junctions["conv1"].task_sets()))
    change = network.remove({"conv1": [gone]})
    rebuild_optimizer(optimizer, old, network, change)
    take_averages(optimizer, network)
    rows = averages["blocks.conv1:A.weight"]
    torch.testing.assert_close(network.blocks["conv1:A"].weight.detach(), rows[1:])
    torch.testing.assert_close(network.blocks["conv1:B"].weight.detach(), averages["blocks.conv1:B.weight"])


def test_weights_that_were_never_trained_stay() -> None:
    network = Separate().merge(material("lenet5", 2))
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    optimizer = torch.optim.Adam(network.parameters())
    update_averages(optimizer, network, 20)
    take_averages(optimizer, network)
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())


def test_weights_that_were_not_trained_stay_when_they_move_into_a_block_that_was() -> None:
    """A shared neuron leaves a task while only that task's own blocks have averages."""
    network = merged("shape", "parts", shared=0.5)
    optimizer = torch.optim.Adam(network.parameters())
    for key, layout in network.layouts.items():
        if layout.group == {"shape"}:
            for parameter in network.blocks[key].parameters():
                optimizer.state[parameter] = {"average": parameter.detach().clone()}
    old = dict(network.named_parameters())
    narrower = {
        junction.name: {n: TaskSet(["shape"]) for n, tasks in junction.task_sets().items() if len(tasks) == 2 and n % 2}
        for junction in network.junctions.values()
        if not junction.fixed
    }
    change = network.restrict({name: sets for name, sets in narrower.items() if sets})
    rebuild_optimizer(optimizer, old, network, change)
    before = network(sample())
    take_averages(optimizer, network)
    for task, output in network(sample()).items():
        torch.testing.assert_close(output, before[task])


def test_forgotten_averages_change_nothing() -> None:
    network = Separate().merge(material("lenet5", 2))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    *_, last = train(network, optimizer, range(1, 4))
    forget_averages(optimizer)
    take_averages(optimizer, network)
    assert all(torch.equal(parameter, last[name]) for name, parameter in network.named_parameters())
