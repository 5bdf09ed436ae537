from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pruning.around import neurons, sample, surroundings
from torch import nn
from torch.distributions import Normal, kl_divergence
from training.small import OBJECTIVES, batches, merged

import pamerge
from pamerge import PamergeError
from pamerge.pruning import VIB, prune
from pamerge.pruning.averages import rescale, take_averages
from pamerge.pruning.vib import gate_penalty
from pamerge.training import Classification, finetune

number = st.floats(0.05, 3.0)


@given(st.lists(st.tuples(number, number), min_size=1, max_size=5), st.sampled_from([1, 9, 64]))
def test_the_penalty_is_the_divergence_from_the_best_prior(gates, pixels):
    """KL(N(μ, D) ‖ N(0, v)) is least for v = μ² + D, where it is ½ ln(1 + μ²/D)."""
    mu, d = torch.tensor(gates, dtype=torch.float64).unbind(1)
    prior = Normal(torch.zeros_like(mu), (mu.square() + d).sqrt())
    expected = math.sqrt(pixels) * kl_divergence(Normal(mu, d.sqrt()), prior).sum()
    assert float(gate_penalty(mu, d.log(), pixels)) == pytest.approx(float(expected), rel=1e-9)


@pytest.fixture
def session():
    session = VIB().start(surroundings(merged()))
    generator = torch.Generator().manual_seed(1)
    for name in session.mu:
        session.mu[name].data.normal_(1.0, 0.5, generator=generator)
        session.log_d[name].data.normal_(-1.0, 2.0, generator=generator)
    return session


def test_folding_the_means_leaves_outputs_and_openness_unchanged(session):
    network, x = session.around.network, sample()
    with torch.no_grad():
        gated = network(x, at_junction=session.hook())
        open_before = session.importance("shape")
        session.fold()
        folded, again = network(x), network(x, at_junction=session.hook())
    for task in gated:
        assert torch.allclose(gated[task], folded[task], atol=1e-5)
        assert torch.allclose(folded[task], again[task], atol=1e-6)
    for name, scores in session.importance("shape").items():
        expected = {neuron: max(value, -1.0) for neuron, value in open_before[name].items()}  # the noise is bounded
        assert scores == pytest.approx(expected, abs=1e-4)


def test_folding_does_not_leave_the_averages_of_weights_behind():
    network, x = merged(), sample()
    optimizer = torch.optim.Adam(network.parameters())
    for parameter in network.parameters():
        optimizer.state[parameter]["average"] = parameter.detach().clone()
    session = VIB().start(surroundings(network, rescale=partial(rescale, optimizer)))
    for mu in session.mu.values():
        mu.data.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        gated = network(x, at_junction=session.hook())
        session.fold()
        take_averages(optimizer, network)
        folded = network(x)
    for task in gated:
        assert torch.allclose(gated[task], folded[task], atol=1e-5)


def test_in_the_loop_what_the_gates_learnt_is_not_lost_with_the_average(monkeypatch):
    """With weights that hardly learn, an average of them is what they are."""
    from pamerge.pruning import trainer

    changes = []

    def watched(optimizer, network):
        network.eval()
        with torch.no_grad():
            before = network(sample())
            take_averages(optimizer, network)
            changes.extend(float((after - before[task]).abs().max()) for task, after in network(sample()).items())

    monkeypatch.setattr(trainer, "take_averages", watched)
    prune(merged(), batches(6), batches(4, seed=1), OBJECTIVES, pruner=VIB(gamma=1e-2, lr=0.1), laps=3, steps=9,
          recovery=0, final=0, lr=1e-9, seed=0, progress=False, fraction=0.01)  # fmt: skip
    assert changes
    assert max(changes) < 1e-4


def test_a_neuron_has_one_gate_even_if_it_is_shared(session):
    around = session.around
    assert {name: len(mu) for name, mu in session.mu.items()} == {n: len(s) for n, s in around.places.sets.items()}
    for name, sets in around.places.sets.items():
        for neuron, tasks in sets.items():
            assert len({session.importance(task)[name][neuron] for task in tasks}) == 1


def test_noise_differs_from_sample_to_sample_only_while_training(session):
    network, x = session.around.network, sample(1).expand(2, -1, -1, -1)
    with torch.no_grad():
        for training in (False, True):
            outputs = network.train(training)(x, {"size"}, at_junction=session.hook())["size"]
            assert torch.equal(outputs[0], outputs[1]) == (not training)


@pytest.mark.parametrize(("closed", "factor"), [(0.0, 1.5), (0.2, 1.0), (0.5, 1 / 1.5)])
def test_gamma_grows_when_too_few_gates_are_closed_and_shrinks_when_too_many_are(session, closed, factor):
    generator = torch.Generator().manual_seed(0)
    for name, log_d in session.log_d.items():
        shut = torch.rand(len(log_d), generator=generator) < closed
        log_d.data = torch.where(shut, 0.5, -5.0)
        session.mu[name].data.fill_(1.0)
    session.measure("shape", iter(()))
    assert session.gamma == {**dict.fromkeys(session.gamma, 1e-5), "shape": pytest.approx(factor * 1e-5)}


def test_all_closed_gates_and_no_others_may_be_removed(session):
    scores = session.importance("shape")
    closed = sum(value < 0 for found in scores.values() for value in found.values())
    assert closed > 3
    assert session.quota("shape", 0.01, scores) == closed
    open_alone = {name: {n: v for n, v in found.items() if v > 0} for name, found in scores.items()}
    assert session.quota("shape", 0.99, open_alone) == 0


def test_only_the_gates_of_the_tasks_subgraph_are_penalised(session):
    session.penalty("shape").backward()
    for name, sets in session.around.places.sets.items():
        touched = (session.log_d[name].grad != 0).tolist()
        assert touched == ["shape" in sets[neuron] for neuron in session.around.places.neurons[name]]


def test_a_session_goes_on_with_what_a_checkpoint_kept(session):
    other = VIB().start(session.around)
    session.gamma["shape"] = 0.5
    other.restore(session.tensors())
    assert other.importance("size") == session.importance("size")
    assert other.gamma == session.gamma


def test_gates_close_on_neurons_that_carry_pure_noise():
    """Half of the hidden neurons read inputs that say nothing about the label."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).eval()
    with torch.no_grad():
        network[0].weight.zero_()
        network[0].weight[:8, :4] = torch.randn(8, 4)
        network[0].weight[8:, 4:] = torch.randn(8, 4)
    x = torch.randn(800, 8)
    data = [(a, {"t": b}) for a, b in zip(x.split(40), (x[:, :4].sum(1) > 0).long().split(40), strict=True)]
    merged_network = pamerge.merge({"t": network}, [x[:4]], pamerge.Separate())
    (junction,) = (j for j in merged_network.junctions.values() if not j.fixed)
    order = sorted(junction.task_sets())
    for parameter in merged_network.blocks["0:t"].parameters():
        parameter.requires_grad_(False)  # so that noise stays noise
    finetune(merged_network, data, {"t": Classification()}, steps=200, lr=1e-2, progress=False)
    path = prune(
        merged_network, data, data, {"t": Classification()}, pruner=VIB(gamma=1e-3), laps=60, steps=10, max_drop=0.05,
        lr=5e-3, final=0, seed=0, progress=False,
    )  # fmt: skip
    left = [order.index(neuron) for neuron in neurons(merged_network)["0"]]
    assert not any(number >= 8 for number in left), f"noise is left: {left}"
    assert left
    assert path.final["t"] >= path.reference["t"] - 0.05 > 0.8


def test_wrong_settings_are_said():
    around = surroundings(merged())
    for pruner, message in (
        (VIB(gamma=0), "gamma=0"),
        (VIB(growth=0.5), "growth=0.5"),
        (VIB(wanted=2), "wanted=2; expected a share from 0 to 0.3"),
        (VIB(lr=-1), "lr=-1; expected a number above 0"),
    ):
        with pytest.raises(PamergeError, match=message):
            pruner.start(around)
