import pytest
import torch

from pamerge import PamergeError
from pamerge.information import Moments, label_columns

NAN = float("nan")


def covariance_of(x, y):
    return torch.cov(torch.cat([x.flatten(1).double(), y.double()], 1).T)


def joined(source):
    return torch.cat([torch.cat([source.xx, source.xy], 1), torch.cat([source.xy.T, source.yy], 1)])


def test_batches_give_the_covariance_of_all_samples(rng):
    x, y = torch.randn(60, 4, 2, generator=rng) + 1000, torch.randn(60, 3, generator=rng) - 500
    moments = Moments()
    for rows in torch.arange(60).split(7):
        moments.add(x[rows], y[rows])
    (source,) = moments.sources()
    assert (source.samples, source.values) == (60, 2)
    torch.testing.assert_close(joined(source), covariance_of(x, y), rtol=1e-9, atol=1e-9)


def test_the_data_are_not_kept(rng):
    moments = Moments()
    for _ in range(50):
        moments.add(torch.randn(40, 3, generator=rng), torch.randn(40, generator=rng))
    held = [value for group in moments._groups for value in vars(group).values() if torch.is_tensor(value)]
    assert sum(tensor.numel() for tensor in held) == 4 + 4**2


def test_labels_with_the_same_samples_share_a_source(rng):
    x = torch.randn(30, 4, generator=rng)
    moments = Moments()
    moments.add(x, {"a": torch.randn(30, generator=rng), "b": torch.randint(3, (30,), generator=rng)})
    (source,) = moments.sources()
    assert source.tasks == ("a", "b", "b")


def test_each_label_is_measured_on_the_samples_that_carry_it(rng):
    x, y = torch.randn(50, 3, generator=rng), torch.randn(50, 2, generator=rng)
    y[5:12, 0] = NAN
    y[30:, 1] = NAN
    moments = Moments()
    for rows in torch.arange(50).split(10):
        moments.add(x[rows], y[rows])
    sources = sorted(moments.sources(), key=lambda source: source.samples)
    assert [source.samples for source in sources] == [30, 43]
    for source, column in zip(sources, (1, 0), strict=True):
        present = ~y[:, column].isnan()
        torch.testing.assert_close(joined(source), covariance_of(x[present], y[present][:, [column]]))


def test_tasks_may_come_in_different_batches(rng):
    x, a, b = (torch.randn(40, size, generator=rng) for size in (3, 1, 2))
    moments = Moments()
    moments.add(x[:10], {"a": a[:10], "b": b[:10]})
    moments.add(x[10:25], {"a": a[10:25]})
    moments.add(x[25:], {"b": b[25:]})
    (of_a,) = moments.sources(["a"])
    (of_b,) = moments.sources(["b"])
    rows = torch.cat([torch.arange(10), torch.arange(25, 40)])
    torch.testing.assert_close(joined(of_a), covariance_of(x[:25], a[:25]))
    torch.testing.assert_close(joined(of_b), covariance_of(x[rows], b[rows]))


def test_a_class_may_first_appear_in_a_later_batch(rng):
    x = torch.randn(40, 3, generator=rng)
    y = torch.cat([torch.randint(2, (20,), generator=rng), torch.randint(5, (20,), generator=rng)])
    y[3] = -1
    moments = Moments()
    for rows in torch.arange(40).split(10):
        moments.add(x[rows], y[rows])
    (source,) = moments.sources()
    columns = label_columns(y, classes=int(y.max()) + 1)
    present = y >= 0
    torch.testing.assert_close(joined(source), covariance_of(x[present], columns[present]))


def test_constant_labels_carry_nothing_and_are_left_out(rng):
    x, y = torch.randn(20, 3, generator=rng), torch.randn(20, 3, generator=rng)
    y[:, 1] = 0.1
    moments = Moments()
    for rows in torch.arange(20).split(7):
        moments.add(x[rows], y[rows])
    (source,) = moments.sources()
    torch.testing.assert_close(joined(source), covariance_of(x, y[:, [0, 2]]))


def test_a_pool_of_neurons_is_a_part_of_the_covariance(rng):
    x, y = torch.randn(20, 4, 2, generator=rng), torch.randn(20, 1, generator=rng)
    moments = Moments()
    moments.add(x, y)
    (source,) = moments.sources(neurons=[3, 1])
    torch.testing.assert_close(joined(source), covariance_of(x[:, [3, 1]], y))


def test_a_batch_that_does_not_fit_the_earlier_ones_is_an_error(rng):
    moments = Moments()
    moments.add(torch.randn(9, 3, generator=rng), {"a": torch.zeros(9, 2)})
    with pytest.raises(PamergeError, match=r"\(4, 1\), but earlier batches had \(3, 1\)"):
        moments.add(torch.randn(9, 4, generator=rng), {"a": torch.zeros(9, 2)})
    with pytest.raises(PamergeError, match="'a' has 5 labels a sample, but 2"):
        moments.add(torch.randn(9, 3, generator=rng), {"a": torch.zeros(9, 5)})
    with pytest.raises(PamergeError, match="'a' are integer classes in some batches"):
        moments.add(torch.randn(9, 3, generator=rng), {"a": torch.zeros(9, dtype=torch.long)})


def test_a_task_without_labels_is_an_error_that_names_it(rng):
    moments = Moments()
    with pytest.raises(PamergeError, match="No activations were added"):
        moments.sources()
    moments.add(torch.randn(9, 3, generator=rng), {"a": torch.zeros(9), "b": torch.full((9,), NAN)})
    for task in ("b", "c"):
        with pytest.raises(PamergeError, match=rf"\['{task}'\]; there are labels of: a, b"):
            moments.sources(["a", task])


def test_labels_on_too_few_samples_are_an_error(rng):
    moments = Moments()
    moments.add(torch.randn(3, 2, generator=rng), {"a": torch.arange(3.0)})
    with pytest.raises(PamergeError, match="Only 3 sample"):
        moments.sources()
