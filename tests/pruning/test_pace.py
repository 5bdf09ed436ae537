from __future__ import annotations

import pytest

from pamerge.pruning.pace import CALM_LAPS, KEPT_BACK, LONGEST_REACH, adapt, keep_back, set_off, slow_down, speed_up
from pamerge.pruning.run_state import Position


@pytest.fixture
def at() -> Position:
    position = Position()
    set_off(position, "AB", reach=1.0)
    return position


def test_a_task_that_fails_removes_half_as_much_and_others_do_not(at):
    slow_down(at, ["A"], patience=2)
    assert at.reach == {"A": 0.5, "B": 1.0}
    assert at.failures == {"A": 1, "B": 0}


def test_who_shares_with_a_task_that_fails_goes_no_faster_and_has_not_failed(at):
    at.reach = {"A": 2.0, "B": 4.0}
    for expected in (1.0, 0.5, KEPT_BACK, KEPT_BACK):
        slow_down(at, ["A"], patience=9)
        keep_back(at, "A", ["B"])
        assert at.reach["B"] == expected
    assert at.reach["A"] == 0.125
    assert at.failures["B"] == 0
    at.reach["B"] = 0.0625
    keep_back(at, "A", ["B"])
    assert at.reach["B"] == 0.0625


def test_nobody_is_kept_back_by_a_task_that_has_stopped(at):
    slow_down(at, ["A"], patience=0)
    keep_back(at, "A", ["B"])
    assert (at.active, at.reach["B"]) == (["B"], 1.0)


def test_a_task_stops_when_it_has_failed_more_often_than_patience_allows(at):
    for _ in range(2):
        slow_down(at, ["A"], patience=2)
        assert at.active == ["A", "B"]
    slow_down(at, ["A"], patience=2)
    assert at.active == ["B"]


def test_a_failure_with_several_rounds_only_makes_them_fewer(at):
    at.reach["A"] = 4.0
    slow_down(at, ["A"], patience=0)
    assert at.active == ["A", "B"]
    assert (at.reach["A"], at.failures["A"]) == (2.0, 0)


def test_a_task_that_is_calm_for_long_removes_more_even_if_it_had_stopped(at):
    slow_down(at, ["A"], patience=0)
    assert at.active == ["B"]
    for _ in range(CALM_LAPS - 1):
        speed_up(at, {"A": True, "B": False}, 0.05)
    assert at.active == ["B"]
    speed_up(at, {"A": True, "B": False}, 0.05)
    assert at.active == ["A", "B"]  # in the order in which they set off
    assert at.reach == {"A": 1.0, "B": 1.0}
    assert at.failures["A"] == 0


def test_calm_laps_count_only_in_a_row(at):
    for calm in [True] * (CALM_LAPS - 1) + [False] + [True] * (CALM_LAPS - 1):
        speed_up(at, {"A": calm}, 0.05)
    assert at.reach["A"] == 1.0
    speed_up(at, {}, 0.05)  # a lap that does not count changes nothing
    speed_up(at, {"A": True}, 0.05)
    assert at.reach["A"] == 2.0


def test_nobody_goes_faster_than_the_longest_reach(at):
    for _ in range(10 * CALM_LAPS):
        speed_up(at, {"A": True}, 0.05)
    assert at.reach == {"A": LONGEST_REACH, "B": 1.0}


def test_nobody_comes_to_remove_half_of_a_network_at_once(at):
    for _ in range(10 * CALM_LAPS):
        speed_up(at, {"A": True}, 0.15)
        speed_up(at, {"B": True}, 0.29)
    assert at.reach == {"A": 2.0, "B": 1.0}


def test_a_task_that_sets_off_faster_than_that_may_go_on_so(at):
    set_off(at, "AB", reach=2 * LONGEST_REACH)
    for _ in range(CALM_LAPS):
        speed_up(at, {"A": True}, 0.05)
    assert at.reach["A"] == 2 * LONGEST_REACH


@pytest.mark.parametrize("recoveries", [0, 1, 4])
def test_a_lap_that_went_well_is_followed_by_a_larger_one(at, recoveries):
    at.reach = {"A": 0.25, "B": 0.25}
    for expected in (0.375, 0.5625, 0.84375, 1.265625):
        adapt(at, ["A"], recoveries, 0.05)
        assert at.reach == {"A": expected, "B": 0.25}
    for _ in range(9):
        adapt(at, ["A"], recoveries, 0.05)
        adapt(at, ["B"], recoveries, 0.15)
    assert at.reach == {"A": LONGEST_REACH, "B": 2.0}


def test_who_sets_off_fast_has_fewer_rounds_after_long_training(at):
    at.reach = {"A": 32.0, "B": 32.0}
    for times, expected in ((0, 32.0), (1, 32.0), (2, 16.0), (3, LONGEST_REACH), (4, LONGEST_REACH)):
        adapt(at, ["A"], times, 0.05)
        assert at.reach == {"A": expected, "B": 32.0}


def test_where_half_of_the_laps_fail_they_become_smaller_and_where_a_third_fails_larger(at):
    for task, fails in (("A", (True, False)), ("B", (True, False, False))):
        at.reach[task] = 0.1
        for failed in fails * 4:
            slow_down(at, [task], patience=99) if failed else adapt(at, [task], 1, 0.05)
    assert at.reach["A"] < 0.1 < at.reach["B"]
