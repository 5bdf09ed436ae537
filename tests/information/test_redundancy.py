import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pamerge import PamergeError
from pamerge.information import Gaussian, Mixture, layer_redundancy

NAN = float("nan")


def test_entropy_is_information_through_noise(rng):
    x = torch.randn(500, 3, generator=rng, dtype=torch.float64) * torch.tensor([1.0, 2.0, 0.0])
    found = layer_redundancy(x, torch.randn(500, generator=rng), Gaussian(ridge=0.1))
    variances = x.var(0)
    noise = 0.1 * float(variances.mean())
    expected = [0.5 * math.log2(1 + float(variance) / noise) for variance in variances]
    assert found.entropies == pytest.approx(expected)
    assert found.entropies[2] == 0


def test_redundancy_is_what_a_layer_can_express_less_what_it_says(rng):
    x = torch.randn(3000, 2, generator=rng, dtype=torch.float64)
    y = x[:, 0] + torch.randn(3000, generator=rng, dtype=torch.float64)
    found = layer_redundancy(x, y, Gaussian(ridge=1e-3))
    assert found.information == pytest.approx(0.5, abs=0.05)
    assert found.bits == pytest.approx(sum(found.entropies) - found.information)


def test_several_tasks_are_told_about_jointly(rng):
    x = torch.randn(3000, 2, generator=rng, dtype=torch.float64)
    a = x[:, 0] + torch.randn(3000, generator=rng, dtype=torch.float64)
    b = x[:, 1] + torch.randn(3000, generator=rng, dtype=torch.float64)
    alone, twice, both = (layer_redundancy(x, labels) for labels in (a, {"a": a, "copy": a}, {"a": a, "b": b}))
    assert twice.information == pytest.approx(alone.information, abs=1e-6)
    assert both.information == pytest.approx(2 * alone.information, abs=0.1)


def test_a_copy_of_a_neuron_is_redundant(rng):
    x = torch.randn(1000, 3, generator=rng)
    y = x[:, 0] + torch.randn(1000, generator=rng)
    copied = layer_redundancy(torch.cat([x, x[:, :1]], 1), y)
    assert copied.bits > layer_redundancy(x, y).bits + 3


@pytest.mark.parametrize("estimator", [Gaussian(), Gaussian(ridge=1.0), Mixture(samples=80)], ids=str)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), neurons=st.integers(1, 5), labels=st.integers(1, 30))
def test_redundancy_is_never_negative(estimator, seed, neurons, labels):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(80, neurons, 2, generator=rng)
    # Many labels that all say the same: a sum over them would exceed what the layer can express.
    y = (x[:, :1, 0] > torch.linspace(-0.5, 0.5, labels)).float()
    found = layer_redundancy(x, y, estimator)
    assert found.bits >= 0
    assert found.information <= sum(found.entropies) + 1e-9


def test_only_samples_with_all_labels_count(rng):
    x = torch.randn(100, 3, generator=rng)
    a, b = x[:, 0].clone(), x[:, 1].clone()
    a[:20], b[70:] = NAN, NAN
    for estimator in (Gaussian(), Mixture()):
        found = layer_redundancy(x, {"a": a, "b": b}, estimator)
        dropped = layer_redundancy(x[20:70], {"a": a[20:70], "b": b[20:70]}, estimator)
        assert found == dropped


def test_no_sample_with_all_labels_is_an_error(rng):
    x, a, b = torch.randn(40, 3, generator=rng), torch.arange(40.0), torch.arange(40.0)
    a[:20], b[20:] = NAN, NAN
    with pytest.raises(PamergeError, match="0 samples carry the labels of all of a, b"):
        layer_redundancy(x, {"a": a, "b": b})
    with pytest.raises(PamergeError, match="No sample carries the labels of all of: a, b"):
        layer_redundancy(x, {"a": a, "b": b}, Mixture())


def test_more_labels_than_samples_are_an_error(rng):
    with pytest.raises(PamergeError, match=r"10 samples carry all labels .* expected at least 13 for 9 labels"):
        layer_redundancy(torch.randn(10, 3, generator=rng), torch.randn(10, 20, generator=rng))
