from __future__ import annotations

import numpy as np
import pytest
import torch
from training.small import INPUT, OBJECTIVES, OUTPUTS, batches, loader

from pamerge import PamergeError
from pamerge.training.data import Batches, survey
from pamerge.training.random_state import unchanged_random_state

X = torch.zeros(4, *INPUT)


def read(data, objectives=OBJECTIVES, known=tuple(OBJECTIVES)) -> Batches:
    return Batches(data, "the training data", objectives, known, lambda x: {t: (OUTPUTS[t],) for t in objectives})


def test_a_batch_has_the_tasks_that_it_has_labels_of():
    first, second, third = read([(X, {"shape": torch.zeros(4).long()}), X, [X, {}]])
    assert first.labelled == {"shape"}
    assert second.labelled == third.labelled == set()


def test_samples_without_labels_are_left_out_of_a_task_and_counted():
    (batch,) = read([(X, {"shape": torch.tensor([1, -1, 2, -1]), "size": torch.full((4, 1), torch.nan)})])
    assert batch.labelled == {"shape"}
    assert batch.rows["shape"].tolist() == [0, 2]
    assert batch.targets["shape"].tolist() == [1, 2]
    assert batch.counts == {"shape": 2}
    assert batch.matching(torch.arange(4), "shape").tolist() == [0, 2]


def test_labels_may_be_arrays_or_none_or_those_of_the_only_task():
    (batch,) = read([(X, {"size": np.zeros((4, 1), dtype=np.float32), "shape": None})])
    assert batch.labelled == {"size"}
    only = {"size": OBJECTIVES["size"]}
    (batch,) = read([[X, torch.zeros(4)]], only, ("size",))
    assert batch.labelled == {"size"}


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((X, {"shape": torch.tensor([0, 1, 2, 9])}), r"Task 'shape' \(Classification\): labels go up to 9"),
        (
            (X, {"parts": torch.zeros(4, 2)}),
            r"Task 'parts' \(MultiLabel\): labels have shape \(4, 2\); expected \(4, 3\)",
        ),
        ((X, {"age": torch.zeros(4)}), r"labels of unknown task\(s\) 'age'; the network has: shape, parts, size"),
        ((X, torch.zeros(4)), "the targets are a Tensor; expected a mapping from tasks"),
        ((X, {}, 3), r"it is a tuple of 3; expected \(inputs, targets\), or just inputs"),
        ({"x": X}, "it is a dict of 1; expected"),
        ((X[:0], {}), r"the inputs are \(0, 2, 8, 8\); expected a tensor of shape \(batch, channels, …\)"),
        ((3, {}), "the inputs are int; expected a tensor"),
    ],
)
def test_a_batch_that_cannot_be_read_is_named(batch, message):
    with pytest.raises(PamergeError, match="^Batch 2 of the training data: .*" + message):
        survey(read([(X, {}), batch]))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((x for x in [X]), "The training data is a generator, which can be read only once"),
        (3, "The training data is a int; expected an iterable"),
        (X, "The training data is one Tensor; expected an iterable"),
    ],
)
def test_data_that_cannot_be_read_again_and_again_is_refused(data, message):
    with pytest.raises(PamergeError, match=message):
        read(data)


def test_empty_data_is_refused_unless_another_process_has_some():
    with pytest.raises(PamergeError, match=r"The training data is empty; expected at least one batch"):
        survey(read([]))
    assert survey(read([]), allow_empty=True).batches == 0


class Counting:
    """Batches without a length that counts how many were read."""

    def __init__(self, data) -> None:
        self.data, self.read = data, 0

    def __iter__(self):
        for batch in self.data:
            self.read += 1
            yield batch


def test_a_survey_reads_on_until_it_has_seen_labels_of_every_task():
    data = Counting([(X, {"shape": torch.zeros(4).long()}), X, *batches(1), X])
    found = survey(read(data), seconds=0)
    assert found.labelled == set(OBJECTIVES)
    assert (data.read, found.batches) == (3, None)


def test_a_survey_counts_data_that_does_not_know_its_length_if_it_is_asked_to():
    assert survey(read(Counting(batches(5))), seconds=0, count=True).batches == 5


def test_a_survey_of_data_without_end_stops():
    class Endless:
        def __iter__(self):
            while True:
                yield X

    assert survey(read(Endless()), most=7).labelled == set()


def test_a_survey_leaves_no_trace_in_the_order_of_a_shuffled_loader():
    expected = [x.sum() for x, _ in loader(32, shuffle=1)]
    data = loader(32, shuffle=1)
    with unchanged_random_state(data):
        survey(read(data))
    assert [x.sum() for x, _ in data] == expected
