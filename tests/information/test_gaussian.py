import math

import pytest
import torch

from pamerge import PamergeError, PamergeWarning
from pamerge.information import Gaussian, Mixture, label_columns, trace, trace_collected
from pamerge.information.bias import freedom, prefix_freedom, wishart_bias

NAN = float("nan")


def log_determinants(x, y, chosen, ridge):
    """Σ_l ½ log₂ |Σ_SS + λI| var(Y_l) / |Σ of (S, Y_l)|, from the data, with nothing incremental."""
    x, y = x.double(), y.double()
    noise = ridge * x.flatten(1).var(0).mean()
    values = x.reshape(len(x), x.shape[1], -1)[:, chosen].flatten(1)
    bits = 0.0
    for column in y.T:
        if column.var() == 0:
            continue
        joint = torch.cov(torch.cat([values, column.unsqueeze(1)], 1).T)
        joint[:-1, :-1] += noise * torch.eye(len(joint) - 1)
        determinants = joint[:-1, :-1].logdet() + joint[-1, -1].log() - joint.logdet()
        bits += 0.5 * float(determinants) / math.log(2)
    return bits


def states_of(x, labels, estimator):
    collector = estimator.collector()
    collector.add(x, labels)
    return collector.states()


def mixed(rng, samples, neurons, values=1):
    """Correlated, rectified activations, with dead and duplicated neurons among them."""
    x = torch.randn(samples, neurons, values, generator=rng)
    x = (x + torch.randn(samples, 1, 1, generator=rng)).relu()
    x[:, 1] = 0
    x[:, 2] = x[:, 0]
    return x


@pytest.mark.parametrize(
    ("neurons", "values", "ridge"), [(6, 1, 1e-2), (70, 1, 1e-2), (70, 1, 1e-6), (12, 3, 1e-2), (40, 4, 1e-3)]
)
def test_every_step_equals_the_log_determinants(rng, neurons, values, ridge):
    x = mixed(rng, 300, neurons, values)
    y = (x[:, :5, 0] + torch.randn(300, 5, generator=rng) > 1).double()
    (state,) = states_of(x, y, Gaussian(ridge))
    chosen = []
    for step in range(neurons):
        scores = state.candidates()
        assert scores.isinf().nonzero().flatten().tolist() == sorted(chosen)
        open_neurons = [j for j in range(neurons) if j not in chosen]
        checked = open_neurons if neurons < 20 else [open_neurons[0], open_neurons[-1]]
        for j in checked:
            assert float(scores[j]) == pytest.approx(log_determinants(x, y, [*chosen, j], ridge), abs=1e-8)
        neuron = int(scores.argmin()) if step % 2 else open_neurons[len(open_neurons) // 2]
        state.add(neuron)
        chosen.append(neuron)
    plain = state.bits() + 5 * wishart_bias(state._freedom(), 1)
    for step in range(0, neurons, max(1, neurons // 6)):
        expected = log_determinants(x, y, chosen[: step + 1], ridge)
        assert float(plain[step]) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("values", [1, 2])
def test_the_greedy_takes_the_neuron_with_least_information_at_each_step(rng, values):
    x = torch.randn(200, 8, values, generator=rng)
    y = x[:, :, 0] @ torch.randn(8, 3, generator=rng) + torch.randn(200, 3, generator=rng)
    chosen = []
    while len(chosen) < 8:
        rest = [j for j in range(8) if j not in chosen]
        chosen.append(min(rest, key=lambda j: log_determinants(x, y, [*chosen, j], 1e-2)))
    assert trace(x, y).order == tuple(chosen)


@pytest.mark.parametrize("noise", [0.5, 2.0])
def test_gaussian_data_give_the_analytic_value(rng, noise):
    x = torch.randn(20000, 3, generator=rng, dtype=torch.float64)
    weights = torch.tensor([1.0, -2.0, 0.0], dtype=torch.float64)
    y = x @ weights + noise * torch.randn(20000, generator=rng, dtype=torch.float64)
    found = trace(x, y, Gaussian(ridge=1e-6))
    assert found.order == (2, 0, 1)
    analytic = [0, 0.5 * math.log2((5 + noise**2) / (4 + noise**2)), 0.5 * math.log2(1 + 5 / noise**2)]
    assert found.bits == pytest.approx(analytic, abs=0.02)


@pytest.mark.parametrize("neurons", [10, 100, 1000])
@pytest.mark.parametrize("kind", ["independent", "correlated"])
def test_noise_says_nothing_after_correction(rng, neurons, kind):
    x = torch.randn(2000, neurons, generator=rng)
    if kind == "correlated":
        x = (x[:, : neurons // 5] @ torch.randn(neurons // 5, neurons, generator=rng)).relu()
    y = (torch.rand(2000, 20, generator=rng) > 0.6).float()
    (state,) = states_of(x, y, Gaussian())
    for neuron in range(neurons):
        state.add(neuron)
    plain = state.bits() + 20 * wishart_bias(state._freedom(), 1)
    assert abs(float(state.bits()[-1])) / 20 < 0.01
    assert float(plain[-1]) / 20 > {10: 0.0005, 100: 0.02, 1000: 0.3}[neurons]


@pytest.mark.filterwarnings("ignore::pamerge.PamergeWarning")
def test_noise_says_nothing_even_with_more_neurons_than_samples(rng):
    x, y = torch.randn(300, 500, generator=rng), torch.randn(300, 20, generator=rng)
    (state,) = states_of(x, y, Gaussian())
    for neuron in range(500):
        state.add(neuron)
    assert abs(float(state.bits()[-1])) / 20 < 0.05


def test_the_correction_is_the_digamma_formula_for_independent_values_without_ridge():
    left = prefix_freedom(torch.eye(50, dtype=torch.float64), 1e-12, 199)
    p = torch.arange(1.0, 51.0, dtype=torch.float64)
    formula = 0.5 * (torch.digamma(torch.tensor(99.5)) - torch.digamma((199 - p) / 2)) / math.log(2)
    torch.testing.assert_close(wishart_bias(left, 1), formula, rtol=1e-5, atol=1e-7)


def test_the_freedom_of_a_prefix_is_that_of_its_leading_block(rng):
    xx = torch.cov(torch.randn(8, 30, generator=rng, dtype=torch.float64))
    every = prefix_freedom(xx, 0.1, 29)
    for size in (1, 4, 8):
        alone = freedom(xx[:size, :size], 0.1, 29)
        torch.testing.assert_close(every.degrees[size - 1 : size], alone.degrees)
        torch.testing.assert_close(every.scale[size - 1 : size], alone.scale)


def test_duplicates_and_dead_neurons_cost_no_degrees_of_freedom(rng):
    x = torch.randn(200, 1, dtype=torch.float64, generator=rng)
    alone = freedom(torch.cov(x.T).reshape(1, 1), 1e-4, 199)
    crowd = freedom(torch.cov(torch.cat([x.repeat(1, 20), torch.zeros(200, 5)], 1).T), 1e-4, 199)
    assert float(crowd.degrees) == pytest.approx(float(alone.degrees), abs=0.01)


def test_classes_are_measured_by_their_one_hot_columns(rng):
    x, y = torch.randn(300, 5, generator=rng), torch.randint(4, (300,), generator=rng)
    x[:, 0] += y
    assert trace(x, y) == trace(x, label_columns(y))


def test_missing_labels_are_the_same_as_dropping_their_samples(rng):
    x = torch.randn(120, 6, generator=rng)
    missing = torch.rand(120, generator=rng) < 0.3
    classes = torch.randint(3, (120,), generator=rng)
    values = x[:, :2] + torch.randn(120, 2, generator=rng)
    classes[missing], values[missing] = -1, NAN
    for labels in (classes, values):
        found, dropped = trace(x, labels), trace(x[~missing], labels[~missing])
        assert found.order == dropped.order
        assert found.bits == pytest.approx(dropped.bits, abs=1e-12)


def test_information_is_summed_over_tasks_each_on_its_own_samples(rng):
    x = torch.randn(150, 7, generator=rng)
    a, b = x[:, 0] + torch.randn(150, generator=rng), x[:, 1:3] + torch.randn(150, 2, generator=rng)
    a[:50], b[80:] = NAN, NAN
    states = states_of(x, {"a": a, "b": b}, Gaussian())
    assert len(states) == 2
    for step in range(7):
        scores = sum(state.candidates() for state in states)
        for j in range(step, 7):
            chosen = [*range(step), j]
            expected = log_determinants(x[50:], a[50:, None], chosen, 1e-2)
            expected += log_determinants(x[:80], b[:80], chosen, 1e-2)
            assert float(scores[j]) == pytest.approx(expected, abs=1e-8)
        for state in states:
            state.add(step)


@pytest.mark.parametrize("estimator", [Gaussian(), Mixture()], ids=str)
def test_a_constant_layer_says_nothing(rng, estimator):
    layer = torch.tensor([0.1, 0.7, 1e6]).expand(47, 3)
    collector = estimator.collector()
    for rows in torch.arange(47).split(13):
        collector.add(layer[rows], torch.randn(len(rows), generator=rng))
    assert trace_collected(collector).bits == pytest.approx((0.0, 0.0, 0.0), abs=1e-9)


def test_constant_labels_are_told_nothing_about(rng):
    found = trace(torch.randn(40, 3, generator=rng), torch.zeros(40, dtype=torch.long))
    assert found.bits == (0.0, 0.0, 0.0)


def test_few_samples_are_warned_about(rng):
    with pytest.warns(PamergeWarning, match=r"30 samples are few for 40 values .* at least 60"):
        trace(torch.randn(30, 20, 2, generator=rng), torch.randn(30, generator=rng))


@pytest.mark.parametrize("ridge", [0, -1.0, NAN, math.inf, "small"])
def test_the_ridge_is_checked_when_it_is_used(ridge):
    estimator = Gaussian(ridge)
    with pytest.raises(PamergeError, match=r"Gaussian\(ridge=.*\): expected a number above 0"):
        estimator.collector()


def test_a_neuron_is_added_only_once(rng):
    (state,) = states_of(torch.randn(20, 3, generator=rng), torch.randn(20, generator=rng), Gaussian())
    state.add(1)
    with pytest.raises(PamergeError, match="Neuron 1 was added before"):
        state.add(1)
