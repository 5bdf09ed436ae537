import numpy as np
import pytest
import torch

from pamerge import PamergeError
from pamerge.information import kind_of, label_codes, label_columns
from pamerge.information.labels import as_tasks, check_neurons, checked_activations

NAN = float("nan")


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        (torch.tensor([0, 3, 1]), "classification"),
        (torch.tensor([0, -1, 1]), "classification"),
        (torch.tensor([True, False]), "classification"),
        (np.array([0, 3, 1]), "classification"),
        (torch.tensor([[0, 1], [1, 1]]), "multilabel"),
        (torch.tensor([[0, -1], [1, 1]]), "multilabel"),
        (torch.tensor([[0.0, NAN], [1.0, 1.0]]), "multilabel"),
        (torch.tensor([[True], [False]]), "multilabel"),
        (torch.tensor([0.0, 1.0]), "regression"),
        (torch.tensor([21.5, NAN]), "regression"),
        (torch.tensor([[0.0, 0.5], [1.0, 1.0]]), "regression"),
    ],
)
def test_the_kind_is_read_off_the_labels(labels, kind):
    assert kind_of(labels) == kind


def test_the_kind_of_labels_that_are_all_missing_is_an_error():
    with pytest.raises(PamergeError, match="Every label is missing"):
        kind_of(torch.tensor([NAN, NAN]))


def test_classes_are_one_hot_columns_without_the_last():
    columns = label_columns(torch.tensor([0, 2, 1, -1]))
    expected = torch.tensor([[1, 0], [0, 0], [0, 1], [NAN, NAN]], dtype=torch.float64)
    torch.testing.assert_close(columns, expected, equal_nan=True)
    assert label_columns(torch.tensor([0, 2]), classes=5).shape == (2, 4)


def test_a_single_class_is_a_constant_column():
    assert label_columns(torch.tensor([0, 0])).tolist() == [[1.0], [1.0]]


def test_too_few_classes_are_an_error_that_names_the_largest():
    with pytest.raises(PamergeError, match=r"classes=2, but labels go up to 3; expected at least 4"):
        label_columns(torch.tensor([0, 3]), classes=2)


def test_multi_label_and_regression_labels_are_their_own_columns():
    integers = label_columns(torch.tensor([[0, 1], [-1, 1]]))
    torch.testing.assert_close(integers, torch.tensor([[0, 1], [NAN, 1]]).double(), equal_nan=True)
    assert label_columns(torch.tensor([1.5, 2.5])).tolist() == [[1.5], [2.5]]
    assert label_columns(torch.tensor([[True, False]])).tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.zeros(2, 3, 4), r"shape \(2, 3, 4\); expected \(N,\) or \(N, L\)"),
        (torch.tensor(1.0), r"shape \(\); expected"),
        (torch.zeros(0), "labels are empty"),
        (torch.zeros(3, 0), "labels are empty"),
        (torch.tensor([1.0, float("inf")]), "infinite"),
        (torch.tensor([[0, 2], [1, 1]]), r"integers of shape \(2, 2\) up to 2; expected zeros and ones"),
        (torch.zeros(2, dtype=torch.complex64), "dtype torch.complex64"),
    ],
)
def test_what_cannot_be_labels_is_an_error(labels, message):
    with pytest.raises(PamergeError, match=message):
        label_columns(labels)


def test_an_error_about_labels_names_the_task():
    with pytest.raises(PamergeError, match="labels of task 'age': labels are empty"):
        as_tasks({"age": torch.zeros(0)})


def test_different_numbers_of_samples_are_an_error_that_tells_them():
    with pytest.raises(PamergeError, match=r"age: 3, gender: 2"):
        as_tasks({"age": torch.zeros(3), "gender": torch.zeros(2)})


def test_no_labels_are_an_error():
    with pytest.raises(PamergeError, match="No labels were given"):
        as_tasks({})


@pytest.mark.parametrize(
    ("activations", "message"),
    [
        (torch.zeros(4), r"shape \(4,\); expected \(N, M\)"),
        (torch.zeros(4, 2, 3, 3), "Pool feature maps"),
        (torch.zeros(4, 0), "empty"),
        (torch.zeros(5, 2), "5 samples and labels have 4"),
        (torch.full((4, 2), NAN), "NaN or infinite"),
    ],
)
def test_what_cannot_be_activations_is_an_error(activations, message):
    with pytest.raises(PamergeError, match=message):
        checked_activations(activations, samples=4)


@pytest.mark.parametrize("neurons", [[], [0, 0], [-1], [3]])
def test_neurons_that_the_layer_lacks_are_an_error(neurons):
    with pytest.raises(PamergeError, match="from 0 to 2"):
        check_neurons(neurons, 3)


def test_regression_values_are_coded_by_quantiles():
    codes = label_codes(torch.arange(100.0), bins=4).squeeze(1)
    assert codes.bincount().tolist() == [25, 25, 25, 25]
    assert codes.tolist() == sorted(codes.tolist())


def test_few_different_values_keep_their_own_code():
    codes = label_codes(torch.tensor([5.0, 5.0, 5.0, 9.0, NAN]), bins=4)
    assert codes.squeeze(1).tolist() == [0, 0, 0, 1, -1]


def test_classes_and_multi_label_labels_are_coded_by_column():
    assert label_codes(torch.tensor([2, -7, 0])).tolist() == [[2], [-1], [0]]
    assert label_codes(torch.tensor([[1.0, 0.0], [0.0, NAN]])).tolist() == [[1, 0], [0, -1]]
