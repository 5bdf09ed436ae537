import doctest
import importlib
import math
import pkgutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pamerge.information
from pamerge import PamergeError
from pamerge.information import Gaussian, Mixture, Trace, trace, trace_collected

ESTIMATORS = [Gaussian(), Mixture(samples=60)]
bits = st.lists(st.floats(0, 10), min_size=1, max_size=12)


def data(seed, samples=60, neurons=7, values=2):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, neurons, values, generator=rng)
    y = (x[:, :3, 0] + torch.randn(samples, 3, generator=rng) > 0).float()
    return x, y, rng


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), permutation=st.permutations(range(7)))
def test_renaming_the_neurons_renames_the_order(estimator, seed, permutation):
    x, y, _ = data(seed)
    found, permuted = trace(x, y, estimator), trace(x[:, permutation], y, estimator)
    assert tuple(permutation[j] for j in permuted.order) == found.order
    assert permuted.bits == pytest.approx(found.bits, abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_the_order_of_the_samples_makes_no_difference(seed):
    x, y, rng = data(seed)
    rows = torch.randperm(60, generator=rng)
    found, permuted = trace(x, y), trace(x[rows], y[rows])
    assert permuted.order == found.order
    assert permuted.bits == pytest.approx(found.bits, abs=1e-9)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), scale=st.floats(0.01, 100), shift=st.floats(-100, 100))
def test_scale_and_offset_of_a_layer_make_no_difference(estimator, seed, scale, shift):
    x, y, _ = data(seed)
    found, changed = trace(x.double(), y, estimator), trace(x.double() * scale + shift, y, estimator)
    assert changed.order == found.order
    assert changed.bits == pytest.approx(found.bits, abs=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(1, 60))
def test_batches_make_no_difference(estimator, seed, size):
    x, y, _ = data(seed)
    collector = estimator.collector()
    for rows in torch.arange(60).split(size):
        collector.add(x[rows], {"a": y[rows], "b": y[rows, 0].long()})
    found, whole = trace_collected(collector), trace(x, {"a": y, "b": y[:, 0].long()}, estimator)
    assert found.order == whole.order
    assert found.bits == pytest.approx(whole.bits, abs=1e-9)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_the_same_call_gives_the_same_trace(estimator):
    x, y, _ = data(0)
    assert trace(x, y, estimator) == trace(x, y, estimator)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_a_trace_is_an_order_of_all_neurons_with_information_that_is_never_negative(estimator):
    x, y, _ = data(1, neurons=40, values=1)
    found = trace(x, y, estimator)
    assert sorted(found.order) == list(range(40))
    assert len(found.bits) == 40
    assert min(found.bits) >= 0
    assert found.total == found.bits[-1] > 0


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_a_trace_of_a_pool_speaks_of_the_layers_indices(estimator):
    x, y, _ = data(2)
    assert sorted(trace(x, y, estimator, neurons=[5, 0, 3]).order) == [0, 3, 5]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_a_set_of_neurons_says_the_same_in_any_pool(estimator):
    x, y, _ = data(2)
    x[:, 4:] *= 10
    whole = trace(x, y, estimator)
    part = trace(x, y, estimator, neurons=sorted(whole.order[:3]))
    assert part.order == whole.order[:3]
    assert part.bits == pytest.approx(whole.bits[:3], abs=1e-9)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_one_collector_serves_every_direction(estimator):
    x, y, _ = data(3)
    collector = estimator.collector()
    collector.add(x, {"a": y[:, :1], "b": y[:, 1:]})
    for task, labels in (("a", y[:, :1]), ("b", y[:, 1:])):
        found, alone = trace_collected(collector, [task]), trace(x, labels, estimator)
        assert found.order == alone.order
        assert found.bits == pytest.approx(alone.bits, abs=1e-12)


def test_neurons_that_say_nothing_come_first():
    rng = torch.Generator().manual_seed(0)
    other, own = torch.randn(2000, 5, generator=rng), torch.randn(2000, 5, generator=rng)
    y = (own @ torch.randn(5, 4, generator=rng) > 0).float()
    found = trace(torch.cat([own, other], 1), y)
    assert set(found.order[:5]) == set(range(5, 10))
    assert found.prefix(0.01) == 5


@given(bits=bits, alpha=st.floats(-1, 2))
def test_a_prefix_satisfies_its_bound_and_is_the_longest_before_the_first_crossing(bits, alpha):
    found = Trace(tuple(range(len(bits))), tuple(bits))
    kept = found.prefix(alpha)
    if alpha < 1:
        assert all(b <= alpha * found.total for b in bits[:kept])
    if alpha >= 0 and kept < len(bits):
        assert bits[kept] > alpha * found.total


@given(bits=bits, alphas=st.lists(st.floats(-1, 2), min_size=2, max_size=2))
def test_a_prefix_grows_with_alpha(bits, alphas):
    found = Trace(tuple(range(len(bits))), tuple(bits))
    assert found.prefix(min(alphas)) <= found.prefix(max(alphas))


@given(bits=bits)
def test_the_ends_of_alpha_are_none_and_all(bits):
    found = Trace(tuple(range(len(bits))), tuple(bits))
    assert found.prefix(-1e-9) == 0
    assert found.prefix(1.0) == len(bits)
    assert found.prefix(math.inf) == len(bits)


def test_a_layer_that_says_nothing_is_kept_whole_at_any_alpha():
    assert Trace((1, 0), (0.0, 0.0)).prefix(0.0) == 2


def test_the_share_can_be_taken_of_another_total():
    found = Trace((0, 1, 2), (0.1, 0.5, 2.0))
    assert found.prefix(0.1) == 1
    assert found.prefix(0.1, total=10.0) == 2


def test_alpha_must_be_a_number():
    with pytest.raises(PamergeError, match="alpha=nan; expected a number"):
        Trace((0,), (1.0,)).prefix(math.nan)


def test_the_examples_in_the_docstrings_run():
    modules = pkgutil.iter_modules(pamerge.information.__path__, "pamerge.information.")
    results = [doctest.testmod(importlib.import_module(module.name)) for module in modules]
    results.append(doctest.testmod(pamerge.information))
    assert sum(result.attempted for result in results) > 15
    assert sum(result.failed for result in results) == 0


def test_a_single_candidate_can_be_traced() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50, 3, generator=generator)
    assert trace(x, x[:, 0], neurons=[1]).order == (1,)
