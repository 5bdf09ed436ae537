import itertools
import math

import pytest
import torch

from pamerge import PamergeError, PamergeWarning, TaskSet
from pamerge.information import Gaussian, layer_conditions
from pamerge.information import joint as joint_module

NAN = float("nan")
A, B, C = TaskSet({"a"}), TaskSet({"b"}), TaskSet({"c"})


def randn(rng, *shape):
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def only_pair(x, sets, labels, **options):
    return layer_conditions(x, sets, labels, **options).pair({"a"}, {"b"})


def entropy(covariance, index):
    """Of a Gaussian, in bits, up to the constant that cancels."""
    return 0.5 * float(covariance[index][:, index].logdet()) / math.log(2) if index else 0.0


def test_independent_tasks_with_exclusive_neurons_meet_the_conditions(rng):
    x = randn(rng, 4000, 6)
    labels = {"a": (x[:, :3].sum(1) > 0).long(), "b": x[:, 3:] + 0.5 * randn(rng, 4000, 3)}
    found = only_pair(x, [A] * 3 + [B] * 3, labels)
    assert found.neurons == (3, 3, 0)
    assert found.samples == 4000
    for value in (
        found.co_information,
        found.private_a,
        found.private_b,
        found.misplaced_a,
        found.misplaced_b,
    ):
        assert abs(value) < 0.01
    assert found.relevant_a > 0.3
    assert found.relevant_b > 1


def test_a_shared_neuron_that_alone_knows_of_a_breaks_the_second_condition(rng):
    x = randn(rng, 4000, 3)
    labels = {"a": x[:, 2] + 0.1 * randn(rng, 4000), "b": x[:, 1] + 0.1 * randn(rng, 4000)}
    found = only_pair(x, [A, B, A | B], labels)
    assert found.private_a > 2
    assert abs(found.private_b) < 0.01
    assert abs(found.co_information) < 0.01
    assert found.relevant_b > 2


def test_what_both_tasks_need_is_not_private(rng):
    x = randn(rng, 4000, 3)
    y = x[:, 2] + 0.1 * randn(rng, 4000)
    found = only_pair(x, [A, B, A | B], {"a": y, "b": y})
    assert abs(found.private_a) < 1e-6
    assert abs(found.private_b) < 1e-6


def test_an_exclusive_neuron_that_knows_of_the_other_task_is_misplaced(rng):
    x = randn(rng, 4000, 2)
    found = only_pair(x, [A, B], {"a": randn(rng, 4000), "b": x[:, 0] + randn(rng, 4000)})
    assert found.misplaced_a == pytest.approx(0.5, abs=0.05)
    assert abs(found.misplaced_b) < 0.01


def test_co_information_is_signed(rng):
    x = randn(rng, 20000, 2)
    common = x.sum(1)
    labels = {task: common + math.sqrt(0.5) * randn(rng, 20000) for task in "ab"}
    negative = only_pair(x, [A, B], labels, estimator=Gaussian(1e-6)).co_information
    assert negative == pytest.approx(0.737 - 2 * 0.424, abs=0.02)
    source = randn(rng, 20000, 1)
    x = source + randn(rng, 20000, 2)
    labels = {task: source.squeeze(1) + randn(rng, 20000) for task in "ab"}
    assert only_pair(x, [A, B], labels).co_information > 0.02


def test_the_numbers_equal_sums_of_entropies(rng, monkeypatch):
    monkeypatch.setattr(joint_module, "wishart_bias", lambda left, labels: torch.zeros(1))
    x = randn(rng, 200, 5, 2) + randn(rng, 200, 1, 1)
    labels = {"a": x[:, 0] + randn(rng, 200, 2), "b": x[:, 1, :1] + x[:, 3, :1] + randn(rng, 200, 1)}
    found = only_pair(x, [A, A, B, A | B, A | B], labels, estimator=Gaussian(0.05))
    covariance = torch.cov(torch.cat([x.flatten(1), labels["a"], labels["b"]], 1).T)
    covariance[:10, :10] += 0.05 * x.flatten(1).var(0).mean() * torch.eye(10)
    a, b, m, ya, yb = [0, 1, 2, 3], [4, 5], [6, 7, 8, 9], [10, 11], [12]

    def h(*blocks):
        return entropy(covariance, sorted(itertools.chain(*blocks)))

    co = 0.0
    for size in range(1, 5):
        for blocks in itertools.combinations([a, b, ya, yb], size):
            co -= (-1) ** size * h(*blocks)
    assert found.co_information == pytest.approx(co, abs=1e-8)
    private = h(m, a, yb) + h(ya, a, yb) - h(a, yb) - h(m, ya, a, yb)
    assert found.private_a == pytest.approx(private, abs=1e-8)
    private = h(m, b, ya) + h(yb, b, ya) - h(b, ya) - h(m, yb, b, ya)
    assert found.private_b == pytest.approx(private, abs=1e-8)
    assert found.misplaced_a == pytest.approx(h(a) + h(yb) - h(a, yb), abs=1e-8)
    assert found.misplaced_b == pytest.approx(h(b) + h(ya) - h(b, ya), abs=1e-8)
    assert found.relevant_a == pytest.approx(h(a) + h(ya) - h(a, ya), abs=1e-8)
    assert found.relevant_b == pytest.approx(h(b) + h(yb) - h(b, yb), abs=1e-8)


def test_noise_meets_the_conditions_however_many_neurons_there_are(rng):
    x = randn(rng, 1000, 300)
    labels = {"a": randn(rng, 1000, 5), "b": torch.randint(4, (1000,), generator=rng)}
    found = only_pair(x, [A] * 100 + [B] * 100 + [A | B] * 100, labels)
    for value in (
        found.co_information,
        found.private_a,
        found.private_b,
        found.misplaced_a,
        found.relevant_b,
    ):
        assert abs(value) < 0.15
    assert found.samples == 1000


def test_three_tasks_have_six_pairs(rng):
    x = randn(rng, 500, 4)
    sets = [A, B, C, A | C]
    labels = {"a": x[:, 0] + x[:, 3], "b": x[:, 1], "c": x[:, 2] - x[:, 3]}
    labels = {task: values + 0.3 * randn(rng, 500) for task, values in labels.items()}
    found = layer_conditions(x, sets, labels)
    pairs = [(str(pair.a), str(pair.b)) for pair in found.pairs]
    assert pairs == [("a", "b"), ("a", "c"), ("a", "b+c"), ("b", "c"), ("b", "a+c"), ("c", "a+b")]
    assert found.pair({"a"}, {"b"}).neurons == (2, 1, 0)
    assert found.pair({"a"}, {"c"}).neurons == (1, 1, 1)
    assert found.pair({"a", "c"}, {"b"}).neurons == (3, 1, 0)
    assert found.pair({"b", "c"}, {"a"}).neurons == (2, 1, 1)
    assert found.pair({"a"}, {"c"}).private_a > 0.3
    for pair in (found.pair({"a"}, {"b"}), found.pair({"a", "c"}, {"b"})):
        assert abs(pair.co_information) < 0.05
        assert pair.private_a == pair.private_b == 0
    assert found.pair({"a", "c"}, {"b"}).relevant_a > found.pair({"a"}, {"b"}).relevant_a


def test_a_pair_can_be_asked_for_in_either_order(rng):
    x = randn(rng, 300, 3)
    found = layer_conditions(x, [A, B, A | B], {"a": x[:, 2] + randn(rng, 300), "b": randn(rng, 300)})
    forth, back = found.pair({"a"}, {"b"}), found.pair({"b"}, {"a"})
    assert back.swapped() == forth
    assert (back.private_b, back.relevant_b, back.neurons) == (forth.private_a, forth.relevant_a, (1, 1, 1))
    with pytest.raises(PamergeError, match="no pair of task sets 'a' and 'c'; there are: a and b"):
        found.pair({"a"}, {"c"})


def test_tasks_with_different_data_sets_have_no_joint_numbers(rng):
    x = randn(rng, 400, 2)
    a, b = x[:, 0] + randn(rng, 400), x[:, 1] + randn(rng, 400)
    a[:200], b[200:] = NAN, NAN
    found = only_pair(x, [A, B], {"a": a, "b": b})
    assert found.samples == 0
    assert math.isnan(found.co_information)
    assert math.isnan(found.private_a)
    assert found.relevant_a == pytest.approx(0.5, abs=0.15)
    assert abs(found.misplaced_a) < 0.05


def test_joint_numbers_use_the_samples_that_carry_both_labels(rng):
    x = randn(rng, 400, 3)
    a, b = x[:, 0] + randn(rng, 400), x[:, 2] + randn(rng, 400)
    a[:100], b[300:] = NAN, NAN
    found = only_pair(x, [A, B, A | B], {"a": a, "b": b})
    middle = slice(100, 300)
    dropped = only_pair(x[middle], [A, B, A | B], {"a": a[middle], "b": b[middle]})
    assert found.samples == 200
    assert found.co_information == pytest.approx(dropped.co_information, abs=1e-9)
    assert found.private_b == pytest.approx(dropped.private_b, abs=1e-9)
    alone = only_pair(x[:300], [A, B, A | B], {"a": randn(rng, 300), "b": b[:300]})
    assert found.relevant_b == pytest.approx(alone.relevant_b, abs=1e-9)


def test_wrong_input_is_an_error_that_says_what_was_expected(rng):
    x, labels = randn(rng, 50, 2), {"a": randn(rng, 50), "b": randn(rng, 50)}
    with pytest.raises(PamergeError, match="task_sets has 1 entries for 2 neurons"):
        layer_conditions(x, [A], labels)
    with pytest.raises(PamergeError, match="Neuron 1 has an empty task set"):
        layer_conditions(x, [A, TaskSet()], labels)
    with pytest.raises(PamergeError, match="expected at least two"):
        layer_conditions(x, [A, A], {"a": labels["a"]})
    with pytest.raises(PamergeError, match="50 samples and labels have 40"):
        layer_conditions(x, [A, B], {task: values[:40] for task, values in labels.items()})


def test_few_samples_are_warned_about(rng):
    with pytest.warns(PamergeWarning, match="20 samples are few for 30 values"):
        only_pair(randn(rng, 20, 30), [A] * 15 + [B] * 15, {"a": randn(rng, 20), "b": randn(rng, 20)})
