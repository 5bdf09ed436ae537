"""Task names and task sets."""

from __future__ import annotations

import doctest
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pamerge.tasks
from pamerge import PamergeError, TaskSet
from pamerge.tasks import all_subsets, check_task_names, resolve_tasks

names = st.sets(st.sampled_from("ABCDE"))


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(pamerge.tasks).failed == 0


@given(names)
def test_text_and_back(tasks: set[str]) -> None:
    assert TaskSet.parse(str(TaskSet(tasks))) == tasks


@given(names, names)
def test_operators_give_task_sets(one: set[str], other: set[str]) -> None:
    left, right = TaskSet(one), TaskSet(other)
    for result, expected in (
        (left | right, one | other),
        (left & right, one & other),
        (left - right, one - other),
    ):
        assert isinstance(result, TaskSet)
        assert result == expected


@given(st.lists(names, max_size=8))
def test_the_order_puts_small_sets_first(sets: list[set[str]]) -> None:
    ordered = sorted(map(TaskSet, sets))
    assert [len(tasks) for tasks in ordered] == sorted(map(len, sets))
    assert all(one <= other for one, other in itertools.pairwise(ordered))


def test_all_subsets_come_small_ones_first() -> None:
    assert [str(tasks) for tasks in all_subsets("ABC")] == ["A", "B", "C", "A+B", "A+C", "B+C", "A+B+C"]


def test_one_task_may_be_given_as_a_string() -> None:
    assert resolve_tasks("age", ["age", "gender"]) == {"age"}


@pytest.mark.parametrize("name", ["a+b", "a.b", "a/b", "", "  ", 3])
def test_a_name_that_cannot_be_part_of_a_file_or_parameter_name_is_refused(name) -> None:
    with pytest.raises(PamergeError, match="cannot be the name of a task"):
        check_task_names([name])
