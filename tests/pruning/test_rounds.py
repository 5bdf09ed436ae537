"""How many rounds a lap has before it is judged."""

from __future__ import annotations

import pytest
from pruning.around import quickly
from training.small import OBJECTIVES, batches, merged

from pamerge.pruning import QuietSession
from pamerge.pruning.loop import MOST_ROUNDS, WORTHWHILE
from pamerge.pruning.ranking import cost_parts, expected_flops, resolve_mix

TASK = "shape"


class OneByOne:
    """Removes one neuron a round, the last one first, and counts the rounds of each task."""

    def __init__(self, removes: bool = True, idle_laps: int = 1) -> None:
        self.rounds: list[str] = []
        self.removes, self.idle_laps = removes, idle_laps

    def start(self, surroundings):
        outer = self

        class Session(QuietSession):
            idle_laps = outer.idle_laps

            def importance(self, task):
                outer.rounds.append(task)
                return {name: {n: -float(n) for n in found} for name, found in surroundings.places.served(task).items()}

            def quota(self, task, fraction, scores):
                return int(outer.removes)

        return Session()


def one_lap(pruner, network=None, **options):
    network = network or merged()
    return quickly(network, batches(2), batches(1), OBJECTIVES, pruner=pruner, laps=1, final=0, recovery=0, **options)


def rounds(pruner) -> int:
    return pruner.rounds.count(TASK)


def test_a_lap_that_saves_next_to_nothing_has_more_rounds_until_it_saves_enough():
    network, pruner = merged(), OneByOne()
    mix = resolve_mix(None, network.tasks)
    before = expected_flops(network, mix)
    enough = WORTHWHILE * 0.4 * sum(cost_parts(network, mix, network.tasks).values())
    path = one_lap(pruner, network, fraction=0.4)
    assert 1 < rounds(pruner) < MOST_ROUNDS
    assert pruner.rounds == ["shape", "parts", "size"] * rounds(pruner)
    assert before - expected_flops(network, mix) >= enough
    assert sum(path[1].removed[TASK].values()) == rounds(pruner)


@pytest.mark.parametrize("fraction", [0.005, 0.01])
def test_a_round_that_saves_enough_is_judged_at_once(fraction):
    pruner = OneByOne()
    one_lap(pruner, fraction=fraction)
    assert rounds(pruner) == 1


@pytest.mark.parametrize(("idle_laps", "expected"), [(1, 1), (2, MOST_ROUNDS)])
def test_only_a_pruner_that_may_wait_is_waited_for_and_not_without_end(idle_laps, expected):
    pruner = OneByOne(removes=False, idle_laps=idle_laps)
    with pytest.warns(UserWarning, match="Nothing could be removed"):
        one_lap(pruner, fraction=0.4)
    assert rounds(pruner) == expected


def test_a_task_that_the_mix_never_runs_does_not_make_every_saving_enough():
    pruner = OneByOne()
    one_lap(pruner, fraction=0.4, mix={"shape+parts": 1.0})
    assert rounds(pruner) > 1


def test_no_round_more_when_the_target_is_reached_or_the_effort_spent():
    network, pruner = merged(), OneByOne()
    target = expected_flops(network, resolve_mix(None, network.tasks)) - 1
    one_lap(pruner, network, fraction=0.9, target=target)
    assert rounds(pruner) == 1
    pruner = OneByOne()
    one_lap(pruner, fraction=0.9, effort=2 * len(OBJECTIVES) ** 2)  # in each turn all are trained
    assert rounds(pruner) == 2


@pytest.mark.parametrize("asked", [1, 3])
def test_the_first_lap_has_as_many_rounds_as_asked_for(asked):
    pruner = OneByOne()
    one_lap(pruner, fraction=0.01, rounds=asked)
    assert pruner.rounds == ["shape", "parts", "size"] * asked


def test_a_task_has_no_further_turn_when_its_subgraph_has_lost_as_much_as_a_lap_may_take():
    """As where a single filter is a large part of a small network."""
    network, pruner = merged(), OneByOne()
    before = {task: network.flops(task) for task in OBJECTIVES}
    one_lap(pruner, network, fraction=0.01, rounds=40)  # 40 rounds of a hundredth each
    assert rounds(pruner) < 40
    for task in OBJECTIVES:
        assert 0.4 <= 1 - network.flops(task) / before[task] < 0.7, task
