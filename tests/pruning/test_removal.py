from __future__ import annotations

import torch
from pruning.around import neurons
from training.small import merged

from pamerge import TaskSet
from pamerge.pruning.gates import Places
from pamerge.pruning.removal import candidates, take_out


def all_scores(places, task):
    return {name: dict.fromkeys(found, 1.0) for name, found in places.served(task).items()}


def test_neurons_that_a_finished_task_uses_are_spared():
    network = merged()
    places = Places(network)
    left = candidates(network, places, all_scores(places, "shape"), "shape", TaskSet({"size"}), "neuron")
    tasks = {places.sets[name][n] for name, found in left.items() for n in found}
    assert tasks
    assert all("shape" in found and "size" not in found for found in tasks)


def test_a_task_may_leave_a_neuron_if_a_finished_task_loses_no_connection():
    network = merged()
    places = Places(network)
    left = candidates(network, places, all_scores(places, "shape"), "shape", TaskSet({"size"}), "task")
    kept = {(name, n) for name, found in left.items() for n in found}
    with_size = [(name, n) for name, n in kept if "size" in places.sets[name][n]]
    assert with_size
    x = torch.randn(3, 2, 8, 8)
    before = network(x, {"size"})["size"]
    optimizer = torch.optim.Adam(network.parameters())
    name, neuron = with_size[0]
    take_out(network, places, optimizer, {name: [neuron]}, "shape", "task")
    assert "shape" not in neurons(network)[name][neuron]
    assert torch.allclose(network(x, {"size"})["size"], before, atol=1e-6)


def test_without_finished_tasks_all_neurons_are_candidates():
    network = merged()
    places = Places(network)
    scores = all_scores(places, "parts")
    assert candidates(network, places, scores, "parts", TaskSet(), "neuron") == scores


def test_the_last_suppliers_have_to_stay():
    network = merged()
    places = Places(network)
    optimizer = torch.optim.Adam(network.parameters())
    name = next(iter(places.sets))
    served = places.served("shape")[name]
    removed, stayed = take_out(network, places, optimizer, {name: list(served)}, "shape", "neuron")
    assert stayed
    assert removed[name] == len(served) - len(stayed)
    network.check()


def test_the_optimiser_goes_on_with_the_smaller_parameters():
    network = merged()
    places = Places(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    network(torch.randn(3, 2, 8, 8))["shape"].sum().backward()
    optimizer.step()
    name, found = next(iter(places.served("shape").items()))
    take_out(network, places, optimizer, {name: found[:1]}, "shape", "neuron")
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert {id(p) for p in held} == {id(p) for p in network.parameters()}
    moments = [optimizer.state[p]["exp_avg"] for p in held if optimizer.state.get(p)]
    assert moments
    assert all(optimizer.state[p]["exp_avg"].shape == p.shape for p in held if optimizer.state.get(p))
    before = [p.detach().clone() for p in held]
    optimizer.zero_grad()
    network(torch.randn(3, 2, 8, 8))["shape"].sum().backward()
    optimizer.step()
    assert any(not torch.equal(a, b) for a, b in zip(before, held, strict=True))
