import math

import pytest
import torch

from pamerge import PamergeError
from pamerge.information import Gaussian, Mixture, label_codes, trace
from pamerge.information import mixture as mixture_module
from pamerge.information.kernels import Readout, bandwidth, shuffles_of, squared_distances

NAN = float("nan")


def direct(values, codes, variance):
    """(1/N) Σ_i log₂ [ mean_{k: y_k = y_i} K_ik / mean_k K_ik ], summed over the labels, sample by sample."""
    values = values.double()
    bits = 0.0
    for code in codes.T:
        for i in range(len(values)):
            kernel = torch.exp(-((values - values[i]) ** 2).sum(1) / (2 * variance))
            bits += float((kernel[code == code[i]].mean() / kernel.mean()).log2()) / len(values)
    return bits


def scaled(x):
    """Centred, with a total variance of 1."""
    values = x.double().flatten(1)
    return (x.double() - x.double().mean(0)) / values.var(0).sum().sqrt()


def state_of(x, labels, estimator):
    collector = estimator.collector()
    collector.add(x, labels)
    (state,) = collector.states()
    return state


def example(rng, samples=60, neurons=6, values=1):
    x = torch.randn(samples, neurons, values, generator=rng)
    multilabel = (x[:, :3, 0] + 0.5 * torch.randn(samples, 3, generator=rng) > 0.3).float()
    classes = (x[:, 0, 0] * 2).round().clamp(-2, 2).long() + 2
    regression = x[:, 1, 0] + 0.2 * torch.randn(samples, generator=rng)
    return x, {"multilabel": multilabel, "classes": classes, "regression": regression}


@pytest.mark.parametrize("values", [1, 3])
@pytest.mark.parametrize("kind", ["multilabel", "classes", "regression"])
@pytest.mark.parametrize("cache", [0, 2**30])
def test_every_step_equals_the_direct_formula(rng, values, kind, cache, monkeypatch):
    monkeypatch.setattr(mixture_module, "_CACHE", cache)
    x, labels = example(rng, values=values)
    codes = label_codes(labels[kind], bins=4)
    state = state_of(x, labels[kind], Mixture())
    t = scaled(x)
    shuffled = shuffles_of(codes, 4, torch.Generator().manual_seed(0))
    chosen = []
    for neuron in (4, 0, 5, 1, 3, 2):
        scores = state.candidates()
        for j in set(range(6)) - set(chosen):
            expected = direct(t[:, [*chosen, j]].flatten(1), codes, state.bandwidth)
            assert float(scores[j]) == pytest.approx(expected, abs=1e-6)
        assert scores.isinf().nonzero().flatten().tolist() == sorted(chosen)
        state.add(neuron)
        chosen.append(neuron)
        values_of_s = t[:, chosen].flatten(1)
        expected = direct(values_of_s, codes, state.bandwidth)
        expected -= sum(direct(values_of_s, other, state.bandwidth) for other in shuffled) / 4
        assert float(state.bits()[-1]) == pytest.approx(expected, abs=1e-9)


def test_a_realistic_layer_equals_the_direct_formula_to_the_last_step(rng):
    x = torch.randn(200, 100, generator=rng).relu()
    y = (x[:, :20] + torch.randn(200, 20, generator=rng) > 1).float()
    state = state_of(x, y, Mixture())
    for neuron in range(99):
        state.add(neuron)
    expected = direct(scaled(x).flatten(1), y, state.bandwidth)
    assert float(state.candidates()[99]) == pytest.approx(expected, abs=1e-6)


def test_shuffled_labels_give_the_chosen_share_of_the_entropy(rng):
    x, labels = example(rng, samples=300, neurons=10)
    for leak in (0.01, 0.2):
        codes = label_codes(labels["multilabel"])
        shuffled = [Readout.of(c) for c in shuffles_of(codes, 3, rng)]
        t = scaled(x).flatten(1)
        variance = bandwidth(squared_distances(t), shuffled, leak)
        found = sum(direct(t, c, variance) for c in shuffles_of(codes, 3, torch.Generator().manual_seed(0)))
        entropy = float(Readout.of(codes).entropy.sum()) / math.log(2)
        assert found / 3 / entropy == pytest.approx(leak, rel=0.35)


@pytest.mark.parametrize("neurons", [10, 100, 1000])
def test_noise_says_nothing_after_correction(rng, neurons):
    x = torch.randn(500, neurons, generator=rng)
    y = (torch.rand(500, 20, generator=rng) > 0.6).float()
    collector = Mixture().collector()
    collector.add(x, y)
    (state,) = collector.states()
    found = state.whole()
    assert abs(found.bits) / 20 < 0.005
    assert float(state._labels.information(state._labels.columns @ _whole_kernel(state)).sum()) / 20 > 0.02


def _whole_kernel(state):
    return torch.exp(-squared_distances(state._values.flatten(0, 1).T))


def test_the_whole_layer_is_the_last_step(rng):
    x, labels = example(rng, values=2)
    state = state_of(x, labels["classes"], Mixture())
    whole = state.whole()
    for neuron in range(6):
        state.add(neuron)
    assert whole.bits == pytest.approx(float(state.bits()[-1]), abs=1e-9)


def test_the_noise_and_the_entropies_are_in_units_of_the_activations(rng):
    x, labels = example(rng)
    small, large = (state_of(factor * x, labels["classes"], Mixture()).whole() for factor in (1, 10))
    assert large.noise == pytest.approx(100 * small.noise)
    torch.testing.assert_close(large.entropies, small.entropies)
    variances = x.squeeze(2).double().var(0)
    torch.testing.assert_close(small.entropies, 0.5 * torch.log2(1 + variances / small.noise))


def test_it_sees_what_a_linear_formula_cannot(rng):
    x = torch.randn(500, 2, generator=rng)
    y = (x[:, 1].abs() > 0.67).long()
    assert trace(x, y, Mixture()).total > 0.2
    assert trace(x, y, Gaussian()).total < 0.02


def test_only_so_many_samples_are_kept_and_batches_make_no_difference(rng):
    x = torch.randn(300, 4, generator=rng)
    y = (x[:, 0] > 0).long()
    y[::7] = -1
    whole, batched = (Mixture(samples=64).collector() for _ in range(2))
    whole.add(x, y)
    for rows in torch.arange(300).split(11):
        batched.add(x[rows], y[rows])
    kept = whole._kept["labels"]
    assert len(kept.x) == 64
    assert bool((kept.labels >= 0).all())
    assert kept.position.tolist() == batched._kept["labels"].position.tolist()
    one, other = whole.states()[0], batched.states()[0]
    assert torch.equal(one.candidates(), other.candidates())


def test_another_seed_keeps_other_samples(rng):
    x = torch.randn(300, 4, generator=rng)
    y = (x[:, 0] > 0).long()
    first, second = (trace(x, y, Mixture(samples=64, seed=seed)) for seed in (0, 1))
    assert first.bits != second.bits
    assert first == trace(x, y, Mixture(samples=64, seed=0))


def test_missing_labels_are_the_same_as_dropping_their_samples(rng):
    x, labels = example(rng, samples=120)
    missing = torch.rand(120, generator=rng) < 0.3
    y = labels["multilabel"].clone()
    y[missing] = NAN
    assert trace(x, y, Mixture()) == trace(x[~missing], y[~missing], Mixture())


def test_tasks_are_summed_each_on_its_own_samples(rng):
    x, labels = example(rng, samples=120)
    a, b = labels["classes"].clone(), labels["multilabel"].clone()
    a[:40], b[80:] = -1, NAN
    collector = Mixture().collector()
    collector.add(x, {"a": a, "b": b})
    states = collector.states()
    alone = [state_of(x[40:], a[40:], Mixture()), state_of(x[:80], b[:80], Mixture())]
    assert len(states) == 2
    for state, expected in zip(states, alone, strict=True):
        assert torch.equal(state.candidates(), expected.candidates())
    assert len(collector.states(["b"])) == 1


def test_tasks_with_the_same_samples_share_a_state(rng):
    x, labels = example(rng, samples=120)
    collector = Mixture(samples=50).collector()
    collector.add(x, labels)
    (state,) = collector.states()
    assert len(state._labels.entropy) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"samples": 2}, r"Mixture\(samples=2\): expected an integer of at least 8"),
        ({"shuffles": 0}, r"Mixture\(shuffles=0\)"),
        ({"bins": 1}, r"Mixture\(bins=1\)"),
        ({"leak": 1.5}, r"Mixture\(leak=1.5\): expected a share between 0 and 1"),
    ],
)
def test_parameters_are_checked_when_they_are_used(arguments, message):
    estimator = Mixture(**arguments)
    with pytest.raises(PamergeError, match=message):
        estimator.collector()


def test_wrong_use_is_an_error_that_says_what_was_expected(rng):
    collector = Mixture().collector()
    with pytest.raises(PamergeError, match="No activations were added"):
        collector.states()
    collector.add(torch.randn(20, 3, generator=rng), {"a": torch.arange(20) % 2})
    with pytest.raises(PamergeError, match="task 'b'; there are labels of: a"):
        collector.states(["b"])
    with pytest.raises(PamergeError, match=r"\(4, 1\), but earlier batches had \(3, 1\)"):
        collector.add(torch.randn(20, 4, generator=rng), {"a": torch.arange(20) % 2})
    with pytest.raises(PamergeError, match=r"'a' are torch\.float32"):
        collector.add(torch.randn(20, 3, generator=rng), {"a": torch.randn(20, generator=rng)})
    (state,) = collector.states()
    state.add(0)
    with pytest.raises(PamergeError, match="Neuron 0 was added before"):
        state.add(0)
    with pytest.raises(PamergeError, match="needs at least 8"):
        trace(torch.randn(5, 3, generator=rng), torch.arange(5) % 2, Mixture())
