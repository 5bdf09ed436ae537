from __future__ import annotations

import pytest
import torch
from pruning.around import neurons, read, sample, surroundings
from training.small import OBJECTIVES, batches, merged

from pamerge.pruning.gates import Places, gate_hook, multiply
from pamerge.pruning.taylor import gate_gradients


@pytest.fixture
def network():
    return merged().double()


def in_double(data):
    return [(x.double(), {task: y.double() if y.is_floating_point() else y for task, y in t.items()}) for x, t in data]


@pytest.mark.parametrize("task", OBJECTIVES)
def test_gate_gradients_equal_central_differences(network, task):
    around = surroundings(network)
    batch = read(in_double(batches(1)))[0]
    found = gate_gradients(around, task, batch)[""]

    def loss(junction, position, value):
        gates = {name: torch.ones(len(array)).double() for name, array in found.items()}
        gates[junction][position] = value
        outputs = network(batch.inputs, {task}, at_junction=gate_hook(around.places, gates))
        return float(OBJECTIVES[task].loss(outputs[task], batch.targets[task]))

    with torch.no_grad():
        for junction, gradient in found.items():
            for position in range(len(gradient)):
                difference = (loss(junction, position, 1 + 1e-7) - loss(junction, position, 1 - 1e-7)) / 2e-7
                assert float(gradient[position]) == pytest.approx(difference, abs=1e-6, rel=1e-4)


def test_the_gradient_of_a_neuron_outside_the_subgraph_is_zero(network):
    around = surroundings(network)
    found = gate_gradients(around, "shape", read(in_double(batches(1)))[0])[""]
    for name, sets in around.places.sets.items():
        for neuron, value in zip(around.places.neurons[name], found[name].tolist(), strict=True):
            assert ("shape" in sets[neuron]) or value == 0.0


def test_what_a_task_loses_through_cut_connections_equals_central_differences():
    """When "parts" leaves a neuron, "shape" loses the weights of blocks that both need."""
    network = merged("shape", "parts").double()
    generator = torch.Generator().manual_seed(0)
    for parameter in network.parameters():  # new connections are zero at first
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    around = surroundings(network, remove="task")
    batch = read(in_double(batches(1)), "shape")[0]
    found = gate_gradients(around, "shape", batch, ["parts"])["parts"]
    compared = 0
    for name, array in found.items():
        blocks = [
            r for r in around.places.readers(network) if r.junction == name and {"shape", "parts"} <= r.layout.group
        ]
        for position in range(len(array)):
            losses = []
            for factor in (1 + 1e-7, 1 - 1e-7):
                kept = [block.weight.detach().clone() for block in blocks]
                for block in blocks:
                    scale = torch.ones(len(block.index)).double()
                    scale[block.index == position] = factor
                    block.weight.data.mul_(block.spread(scale))
                with torch.no_grad():
                    output = network(batch.inputs, {"shape"})["shape"]
                    losses.append(float(OBJECTIVES["shape"].loss(output, batch.targets["shape"])))
                for block, weight in zip(blocks, kept, strict=True):
                    block.weight.data.copy_(weight)
            difference = (losses[0] - losses[1]) / 2e-7
            compared += difference != 0
            assert float(array[position]) == pytest.approx(difference, abs=1e-6, rel=1e-4)
    assert compared > 3


def test_frozen_weights_stay_frozen_and_their_connections_count(network):
    around = surroundings(network, remove="task")
    batch = read(in_double(batches(1)))[0]
    expected = gate_gradients(around, "shape", batch, ["parts"])
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    found = gate_gradients(around, "shape", batch, ["parts"])
    assert not any(parameter.requires_grad for parameter in network.parameters())
    for kind, arrays in expected.items():
        assert all(torch.allclose(found[kind][name], array) for name, array in arrays.items())


def test_after_removals_a_gate_still_belongs_to_its_neuron(network):
    places = Places(network)
    before = {name: list(found) for name, found in neurons(network).items()}
    network.remove({name: found[1:3] for name, found in before.items()})
    places.refresh(network)
    x = sample(dtype=torch.float64)
    for name, left in neurons(network).items():
        victim = list(left)[-1]
        gates = places.new_arrays(lambda count: torch.ones(count, dtype=torch.float64))
        gates[name][before[name].index(victim)] = 0.0
        with torch.no_grad():
            gated = network(x, at_junction=gate_hook(places, gates))
            for reader in places.readers(network):
                if reader.junction == name and victim in reader.layout.inputs:
                    at = reader.layout.inputs.tolist().index(victim)
                    reader.weight.data.mul_(
                        reader.spread(torch.tensor([float(i != at) for i in range(len(reader.layout.inputs))]).double())
                    )
            cut = network(x)
        assert all(torch.allclose(gated[task], cut[task]) for task in cut)


def test_a_gate_multiplies_all_values_of_a_flattened_neuron():
    tensor = torch.ones(2, 6)
    assert multiply(tensor, torch.tensor([1.0, 2.0, 3.0])).tolist() == [[1, 1, 2, 2, 3, 3]] * 2
    by_sample = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert multiply(torch.ones(2, 2, 1, 1), by_sample).flatten(1).tolist() == [[1, 0], [0, 1]]


def test_rows_of_a_reader_are_the_weights_of_its_neurons(network):
    for reader in Places(network).readers(network):
        count, width = len(reader.layout.inputs), reader.layout.input_width
        rows = reader.by_neuron(reader.weight)
        first = reader.weight[:, :width] if reader.axis == 1 else reader.weight[:width]
        assert rows.shape[0] == count
        assert rows[0].sum().item() == pytest.approx(first.sum().item())
