"""Statistics of batch norms that are measured anew."""

from __future__ import annotations

import itertools

import torch
from lightning_fabric import Fabric
from torch import nn
from training.small import inputs, merged

from pamerge.training.data import Batch
from pamerge.training.statistics import ENOUGH, refresh_statistics

FABRIC = Fabric(accelerator="cpu", devices=1)


def feed(size: int = 8):
    return itertools.cycle([Batch(x, {}, {}, {}) for x in inputs(5 * size).split(size)])


def norms(network, tasks):
    return {
        key: module
        for key, layout in network.layouts.items()
        if layout.group & tasks
        for module in network.blocks[key].modules()
        if isinstance(module, nn.BatchNorm2d)
    }


def test_statistics_are_those_of_the_weights_as_they_are():
    network = merged("shape", "parts", batch_norm=True, shared=0.5)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1.5)
    network.train()
    refresh_statistics(network, feed(), ["shape", "parts"], FABRIC)
    found = norms(network, {"shape", "parts"})
    refreshed = {key: norm.running_mean.clone() for key, norm in found.items()}
    assert refreshed
    means = {}
    for key, norm in found.items():
        norm.register_forward_pre_hook(lambda _, x, key=key: means.setdefault(key, []).append(x[0].mean((0, 2, 3))))
    for batch in itertools.islice(feed(), 5):
        network(batch.inputs)
    for key, norm in found.items():
        torch.testing.assert_close(refreshed[key], torch.stack(means[key]).mean(0).detach())
        assert norm.momentum == 0.1


def test_tasks_that_are_not_asked_for_and_frozen_norms_keep_theirs():
    network = merged("shape", "parts", seed=None, batch_norm=True)
    before = {key: norm.running_mean.clone() for key, norm in norms(network, {"parts"}).items()}
    network.train()
    used = feed()
    refresh_statistics(network, used, ["shape"], FABRIC)
    for key, norm in norms(network, {"parts"}).items():
        assert torch.equal(norm.running_mean, before[key])
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    network.eval()
    refresh_statistics(network, iter(()), ["shape", "parts"], FABRIC)
    assert all(torch.equal(tensor, state[name]) for name, tensor in network.state_dict().items())


def test_a_network_without_batch_norms_uses_no_batches():
    network = merged("shape", "parts").train()
    used = itertools.count()
    refresh_statistics(network, (next(used) and None for _ in range(ENOUGH)), ["shape"], FABRIC)
    assert next(used) == 0
