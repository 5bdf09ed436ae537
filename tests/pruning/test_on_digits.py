"""The whole way on canvases of digits: merged, fine-tuned, pruned, saved."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from pruning.around import neurons
from support.trained import digit_networks, digits

import pamerge
from pamerge.pruning import VIB, Taylor, prune
from pamerge.pruning.gates import Places
from pamerge.tasks import all_subsets
from pamerge.training import MultiLabel, evaluate, finetune

OBJECTIVES = {"A": MultiLabel(), "B": MultiLabel()}
DROP = 0.02


def loaders():
    splits = digits()
    train = splits.train.loader(64, shuffle=torch.Generator().manual_seed(1))
    return train, splits.validation.loader(100), splits.test.loader(100)


@functools.cache
def _merged():
    train, validation, _ = loaders()
    networks = digit_networks()
    network = pamerge.merge(networks, train, pamerge.PAM(alpha=0.2))
    finetune(network, train, OBJECTIVES, steps=60, lr=1e-3, seed=0, progress=False)
    return network, evaluate(networks, validation, OBJECTIVES)


@pytest.mark.slow
@pytest.mark.parametrize("pruner", [Taylor(batches=4), VIB(gamma=1e-4, lr=0.1)], ids=["Taylor", "VIB"])
def test_a_pruned_network_is_within_its_budget_smaller_for_every_subset_and_can_be_saved(pruner, tmp_path):
    merged, reference = _merged()
    network = copy.deepcopy(merged)
    train, validation, test = loaders()
    path = prune(
        network, train, validation, OBJECTIVES, pruner=pruner, max_drop=DROP, reference=reference, fraction=0.1,
        steps=8, recovery=20, final=60, patience=1, laps=14, lr=2e-3, seed=0, progress=False,
    )  # fmt: skip
    network.check()
    found = evaluate(network, validation, OBJECTIVES)
    assert found == pytest.approx(dict(path.final))
    assert all(found[task] >= reference[task] - DROP - 1e-9 for task in OBJECTIVES)
    unseen, originals = evaluate(network, test, OBJECTIVES), evaluate(digit_networks(), test, OBJECTIVES)
    assert all(unseen[task] >= originals[task] - DROP for task in OBJECTIVES)
    for subset in all_subsets("AB"):
        assert network.flops(subset) < 0.9 * merged.flops(subset) == 0.9 * path[0].flops[str(subset)]
    assert network.parameter_count() < 0.8 * merged.parameter_count()
    assert sum(map(len, neurons(network).values())) < 0.9 * sum(map(len, neurons(merged).values()))
    assert all(p.detach().flatten(1).abs().sum(1).min() > 0 for p in network.parameters() if p.dim() > 1)
    places = Places(network)
    read = places.new_arrays(torch.zeros)
    for reader in places.readers(network):
        read[reader.junction][reader.index] += reader.by_neuron(reader.weight.detach()).abs().sum(1)
    assert all(weights.min() > 0 for weights in read.values())
    pamerge.save(network, tmp_path / "digits.pam")
    loaded = pamerge.load(tmp_path / "digits.pam")
    x = next(iter(test))[0]
    with torch.no_grad():
        for subset in all_subsets("AB"):
            outputs, again = network(x, subset), loaded(x, subset)
            assert all(torch.equal(outputs[task], again[task]) for task in subset)
