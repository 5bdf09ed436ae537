"""Work in several processes: what they tell arrives, and nothing hangs or stays behind."""

from __future__ import annotations

import multiprocessing
import os
import warnings

import pytest
import torch

from pamerge import PamergeError, PamergeWarning
from pamerge.experiments import Event
from pamerge.experiments.processes import in_processes


def count(number: int, watch) -> None:
    for _ in range(number):
        watch(Event("x" * 100, "done", torch.get_num_threads()))


def warn(watch) -> None:
    warnings.warn("few samples", PamergeWarning, stacklevel=1)


def fail(number: int, watch) -> None:
    raise PamergeError(f"number {number} is wrong")


def vanish(watch) -> None:
    os._exit(1)


def test_everything_that_is_told_arrives() -> None:
    told: list[Event] = []
    in_processes(count, [(3,), (4,)], 2, told.append)
    assert len(told) == 7
    assert {event.seconds for event in told} == {max(1, torch.get_num_threads() // 2)}


def test_warnings_are_given_in_the_main_process() -> None:
    with pytest.warns(PamergeWarning, match="few samples"):
        in_processes(warn, [()], 2, print)


def test_an_error_is_raised_here_and_nobody_is_left() -> None:
    with pytest.raises(PamergeError, match="number 7 is wrong"):
        in_processes(fail, [(7,), (7,), (7,)], 2, print)
    assert not multiprocessing.active_children()


def test_a_process_that_vanishes_is_said() -> None:
    with pytest.raises(PamergeError, match="ended by itself"):
        in_processes(vanish, [()], 1, print)


def test_an_error_in_the_telling_does_not_block_the_workers() -> None:
    def broken(event: Event) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        in_processes(count, [(2000,)], 1, broken)  # more than a pipe holds
