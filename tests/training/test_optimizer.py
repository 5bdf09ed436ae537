from __future__ import annotations

import copy
import gc
import weakref
from functools import partial

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from torch import nn
from training.small import OBJECTIVES, OUTPUTS, batches, merged

from pamerge import MultitaskNetwork, PamergeError, PamergeWarning
from pamerge.training.data import Batches
from pamerge.training.optimizer import make_optimizer, rebuild_optimizer, set_learning_rate
from pamerge.training.steps import train_step

FABRIC = Fabric(accelerator="cpu", devices=1)
OPTIMISERS = {
    "Adam": None,
    "Adam, not fused": torch.optim.Adam,
    "AdamW with amsgrad": partial(torch.optim.AdamW, amsgrad=True),
    "SGD": partial(torch.optim.SGD, momentum=0.9),
    "RMSprop": torch.optim.RMSprop,
}


def train(network: MultitaskNetwork, optimizer: torch.optim.Optimizer, steps: int, seed: int = 0) -> None:
    network.train()
    data = Batches(batches(steps, seed=seed), "data", OBJECTIVES, None, lambda x: {t: (n,) for t, n in OUTPUTS.items()})
    for batch in data:
        train_step(network, batch, OBJECTIVES, optimizer, fabric=FABRIC)


def some_neurons(network: MultitaskNetwork) -> dict[str, list[int]]:
    return {j.name: [n for n in j.task_sets() if n % 3 == 0] for j in network.junctions.values() if not j.fixed}


def state_of(network, optimizer, key, name):
    return optimizer.state[dict(network.blocks[key].named_parameters())[name]]


def expected_entry(old_layouts, new_layout, name, entries):
    """Slices an entry by hand: the rows and columns of channels that survived; zero where a connection is new."""
    rows, width_in = new_layout.outputs.tolist(), new_layout.input_width
    columns = [c * width_in + i for c in new_layout.inputs.tolist() for i in range(width_in)]
    found = {}
    for key, layout in old_layouts.items():
        if layout.node.name != new_layout.node.name or key not in entries:
            continue
        old_columns = [c * width_in + i for c in layout.inputs.tolist() for i in range(width_in)]
        for row, channel in enumerate(layout.outputs.tolist()):
            if name == "bias":
                found[channel] = entries[key][row]
            else:
                for column, source in enumerate(old_columns):
                    found[channel, source] = entries[key][row, column]
    if name == "bias":
        return torch.stack([found[channel] for channel in rows])
    zero = torch.zeros_like(next(iter(found.values())))
    return torch.stack([torch.stack([found.get((channel, source), zero) for source in columns]) for channel in rows])


@pytest.mark.parametrize("name", OPTIMISERS)
def test_after_a_removal_the_optimiser_remembers_the_weights_that_stayed(name):
    network = merged()
    optimizer = make_optimizer(network, OPTIMISERS[name], lr=1e-3)
    train(network, optimizer, 3)
    layouts, before = dict(network.layouts), dict(network.named_parameters())
    old_states = {n: dict(optimizer.state[p]) for n, p in before.items()}
    change = network.remove(some_neurons(network))
    rebuild_optimizer(optimizer, before, network, change)
    moved = 0
    for key, layout in network.layouts.items():
        for parameter_name, parameter in network.blocks[key].named_parameters():
            state = state_of(network, optimizer, key, parameter_name)
            for entry, value in state.items():
                entries = {k: old_states[f"blocks.{k}.{parameter_name}"].get(entry) for k in layouts}
                if isinstance(value, torch.Tensor) and value.dim():
                    assert value.shape == parameter.shape
                    assert torch.equal(value, expected_entry(layouts, layout, parameter_name, entries)), (key, entry)
                    moved += 1
                elif value is not None:
                    assert value == entries[next(iter(entries))]
    assert moved >= len(list(network.parameters()))


@pytest.mark.parametrize("name", OPTIMISERS)
def test_training_goes_on_as_if_dead_neurons_had_never_been_there(name):
    """Neurons whose weights are all zero learn nothing and teach nothing, so removing them must not be noticed."""
    network = merged(seed=None)
    dead = [2, 3]  # neurons of the first convolution
    for key, layout in network.layouts.items():
        rows = np.flatnonzero(np.isin(layout.outputs, dead) & (layout.node.name == "0"))
        columns = np.flatnonzero(np.isin(layout.inputs, dead) & (layout.node.name == "3"))
        with torch.no_grad():
            network.blocks[key].weight[rows] = 0
            network.blocks[key].weight[:, columns] = 0
            network.blocks[key].bias[rows] = 0
    kept, pruned = copy.deepcopy(network), network
    make = partial(make_optimizer, factory=OPTIMISERS[name], lr=1e-3)
    for net in (kept, pruned):
        optimizer = make(net)
        train(net, optimizer, 3)
        if net is pruned:
            before = dict(net.named_parameters())
            rebuild_optimizer(optimizer, before, net, net.remove({"0": dead}))
        train(net, optimizer, 3, seed=5)
    assert pruned.parameter_count() < kept.parameter_count()
    x = batches(1, seed=9)[0][0]
    for task, output in pruned(x).items():
        torch.testing.assert_close(output, kept(x)[task], rtol=1e-4, atol=1e-6)


def test_old_parameters_are_let_go_and_new_ones_are_trained():
    network = merged()
    optimizer = make_optimizer(network, torch.optim.Adam, lr=1e-2)
    train(network, optimizer, 2)
    unchanged = {id(p) for p in network.parameters()}
    before = dict(network.named_parameters())
    change = network.remove(some_neurons(network))
    rebuild_optimizer(optimizer, before, network, change)
    gone = [weakref.ref(p) for n, p in before.items() if id(p) not in {id(q) for q in network.parameters()}]
    del before, change
    gc.collect()
    assert gone
    assert all(reference() is None for reference in gone)
    optimised = [p for group in optimizer.param_groups for p in group["params"]]
    assert [id(p) for p in optimised] == [id(p) for p in network.parameters()]
    assert unchanged != {id(p) for p in optimised}
    values = {n: p.detach().clone() for n, p in network.named_parameters()}
    train(network, optimizer, 1, seed=3)
    assert all(not torch.equal(p, values[n]) for n, p in network.named_parameters() if p.grad.abs().max() > 0)


def test_neurons_that_leave_one_task_take_their_memory_with_them():
    network = merged()
    optimizer = make_optimizer(network, torch.optim.Adam, lr=1e-3)
    train(network, optimizer, 2)
    layouts, before = dict(network.layouts), dict(network.named_parameters())
    momenta = {n: optimizer.state[p]["exp_avg"].clone() for n, p in before.items()}
    narrower = {
        j.name: {n: tasks - {"size"} for n, tasks in j.task_sets().items() if len(tasks) > 1 and n % 2}
        for j in network.junctions.values()
        if not j.fixed
    }
    change = network.restrict({name: sets for name, sets in narrower.items() if sets})
    rebuild_optimizer(optimizer, before, network, change)
    for key, layout in network.layouts.items():
        entries = {k: momenta[f"blocks.{k}.weight"] for k in layouts}
        found = state_of(network, optimizer, key, "weight")["exp_avg"]
        assert torch.equal(found, expected_entry(layouts, layout, "weight", entries)), key
    train(network, optimizer, 1)


def test_groups_frozen_parameters_and_parameters_of_others_are_kept():
    network = merged()
    named = dict(network.named_parameters())
    heads = {name for name in named if ":9:" in name}
    frozen = {name for name in named if name.startswith("blocks.0:")}
    for name in frozen:
        named[name].requires_grad_(False)
    gate = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD(
        [
            {"params": [p for n, p in named.items() if n not in heads | frozen], "lr": 0.1},
            {"params": [named[n] for n in sorted(heads)], "lr": 0.2},
            {"params": [gate], "lr": 0.3},
        ],
        momentum=0.9,
    )
    optimizer.state[gate]["momentum_buffer"] = torch.full((3,), 7.0)
    rebuild_optimizer(optimizer, named, network, network.remove(some_neurons(network)))
    body, top, gates = (group["params"] for group in optimizer.param_groups)
    new = {id(p): n for n, p in network.named_parameters()}
    assert len(top) == 6
    assert all(":9:" in new[id(p)] for p in top)
    assert {new[id(p)].split(":")[0] for p in body} == {"blocks.3", "blocks.7"}
    assert gates[0] is gate
    assert optimizer.state[gate]["momentum_buffer"].tolist() == [7.0] * 3
    assert {name.split(":")[0] for name, p in network.named_parameters() if not p.requires_grad} == {"blocks.0"}


def test_memory_of_another_shape_is_forgotten_with_a_warning():
    network = merged()
    optimizer = make_optimizer(network, torch.optim.Adafactor, lr=1e-2)
    train(network, optimizer, 1)
    before = dict(network.named_parameters())
    change = network.remove(some_neurons(network))
    with pytest.warns(PamergeWarning, match="keeps 'row_var' in another shape than its parameter"):
        rebuild_optimizer(optimizer, before, network, change)
    train(network, optimizer, 1)


def test_cosine_goes_from_the_first_rate_to_zero():
    optimizer = torch.optim.SGD(
        [{"params": [nn.Parameter(torch.ones(1))], "lr": 0.2}, {"params": [nn.Parameter(torch.ones(1))]}], lr=0.4
    )
    assert [round(set_learning_rate(optimizer, "cosine", share), 6) for share in (0, 0.5, 1, 2)] == [0.2, 0.1, 0.0, 0.0]
    assert set_learning_rate(optimizer, "constant", 0.7) == 0.2
    set_learning_rate(optimizer, "cosine", 0.5)
    assert optimizer.param_groups[1]["lr"] == pytest.approx(0.2)


def test_what_makes_no_optimiser_is_refused():
    with pytest.raises(PamergeError, match="optimizer made a list; expected a function"):
        make_optimizer(merged(), lambda parameters, lr: list(parameters), 0.1)
    network = merged().requires_grad_(False)
    with pytest.raises(PamergeError, match="no parameter that could be trained"):
        make_optimizer(network, torch.optim.Adam, 0.1)
