"""Neurons that are removed in blocks, so that group sizes suit the hardware."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from pruning.around import quickly
from training.small import OBJECTIVES, batches, merged

from pamerge import Magnitude, PamergeError, TaskSet
from pamerge.network.network import MultitaskNetwork
from pamerge.pruning.ranking import lowest
from pamerge.pruning.rounding import lowest_in_blocks

A, B, BOTH = TaskSet("A"), TaskSet("B"), TaskSet("AB")


def groups(network: MultitaskNetwork) -> dict[tuple[str, str], frozenset[int]]:
    return {
        (name, str(group)): frozenset(neurons)
        for name, junction in network.junctions.items()
        if not junction.fixed
        for group, neurons in junction.groups.items()
    }


@pytest.mark.parametrize("seed", range(20))
def test_what_is_left_of_a_group_is_a_multiple_or_was_smaller(seed: int) -> None:
    chance = random.Random(seed)
    sets = {name: {n: chance.choice([A, B, BOTH]) for n in range(chance.randint(1, 90))} for name in ("x", "y", "z")}
    scores = {name: {n: chance.random() for n, tasks in found.items() if "A" in tasks} for name, found in sets.items()}
    scores = {name: found for name, found in scores.items() if found}
    count = chance.randint(1, 40)
    chosen = lowest_in_blocks(scores, sets, count, 8)
    assert count <= sum(map(len, chosen.values())) < count + 8
    for name, found in sets.items():
        removed = set(chosen.get(name, ()))
        before = Counter(found.values())
        after = Counter(tasks for n, tasks in found.items() if n not in removed)
        for group, size in before.items():
            assert after[group] == size or after[group] % 8 == 0 or size < 8
            gone = [scores[name][n] for n in removed if found[n] == group]
            left = [scores[name][n] for n in scores.get(name, ()) if found[n] == group and n not in removed]
            assert not gone or not left or max(gone) <= min(left), "within a group the least important go first"


def test_an_uneven_group_first_loses_what_is_too_much() -> None:
    sets = {"x": dict.fromkeys(range(11), A)}
    scores = {"x": {n: float(n) for n in range(11)}}
    assert lowest_in_blocks(scores, sets, 1, 8) == {"x": [0, 1, 2]}
    assert lowest_in_blocks(scores, sets, 4, 8) == {"x": list(range(11))}
    del scores["x"][5]  # one that has to stay: the last block is not whole, so it is left alone
    assert lowest_in_blocks(scores, sets, 11, 8) == {"x": [0, 1, 2]}


def test_enough_is_enough() -> None:
    sets = {"x": dict.fromkeys(range(8), A), "y": dict.fromkeys(range(8), A)}
    scores = {"x": dict.fromkeys(range(8), 1.0), "y": dict.fromkeys(range(8), 2.0)}
    freed = {"x": dict.fromkeys(range(8), 1.0)}
    assert lowest_in_blocks(scores, sets, 8, 4, freed, needed=3.0) == {"x": [0, 1, 2, 3]}
    assert lowest_in_blocks(scores, sets, 16, 1) == lowest(scores, 16)


def test_pruning_leaves_groups_of_whole_blocks() -> None:
    network = merged()
    before = groups(network)
    cost = network.flops()
    quickly(network, batches(2), batches(1, seed=1), OBJECTIVES, pruner=Magnitude(), laps=4, fraction=0.2, round_to=2)
    network.check()
    assert network.flops() < cost
    after = groups(network)
    changed = {place: len(after.get(place, ())) for place, neurons in before.items() if after.get(place) != neurons}
    assert changed
    assert all(size % 2 == 0 or size < 2 or len(before[place]) < 2 for place, size in changed.items())


@pytest.mark.parametrize("number", [0, -8, 2.5, True])
def test_a_wrong_number_is_explained(number: object) -> None:
    with pytest.raises(PamergeError, match="round_to="):
        quickly(merged(), batches(1), batches(1), OBJECTIVES, pruner=Magnitude(), laps=1, round_to=number)
