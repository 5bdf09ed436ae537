"""What a task's turn removes: from the pruner's scores to neurons that are gone."""

from __future__ import annotations

from pamerge.pruning.blame import blame_key, raised
from pamerge.pruning.freed import flops_freed, per_flop, that_free
from pamerge.pruning.gates import Places
from pamerge.pruning.protocol import Scores
from pamerge.pruning.ranking import expected_flops, lowest
from pamerge.pruning.removal import Removal, candidates, take_out
from pamerge.pruning.rounding import lowest_in_blocks
from pamerge.pruning.run_state import Ingredients, RunState
from pamerge.tasks import TaskSet


def remove_least(
    of: Ingredients, state: RunState, task: str, fraction: float, wanted: float, finished: TaskSet
) -> tuple[Removal, list[str]]:
    """Remove the least important neurons of a task's subgraph.

    Args:
        of: The network and how it is pruned.
        state: The pruner has measured already.
        task: Whose turn it is.
        fraction: The share of the subgraph's neurons that the pruner is asked for.
        wanted: No more when as much as this of the expected cost is saved.
        finished: Tasks that must not lose anything.

    Returns:
        What was removed, and under which names the neurons can be blamed for it later.
    """
    network, places, settings, mix = of.network, state.places, of.settings, of.mix
    scores = candidates(network, places, state.session.importance(task), task, finished, settings.remove)
    freed = flops_freed(network, mix, task if settings.remove == "task" else None)
    scores = that_free(raised(scores, state.at.blame, task), freed)
    left = state.session.quota(task, fraction, scores) if scores else 0
    if left and settings.per_flop:
        scores = per_flop(scores, freed)
    least = max(expected_flops(network, mix) - wanted, settings.target or 0.0)
    removed: dict[str, int] = {}
    refused: set[tuple[str, int]] = set()
    taken: list[str] = []
    while left > 0:  # where neurons had to stay, the next ones in the ranking go instead
        needed = expected_flops(network, mix) - least
        present = _present(scores, places, task, refused)
        if settings.round_to > 1:
            chosen = lowest_in_blocks(present, places.sets, left, settings.round_to, freed, needed)
        else:
            chosen = lowest(present, left, freed, needed)
        if not chosen:
            break
        found, stayed = take_out(network, places, state.optimizer, chosen, task, settings.remove)
        for name, number in found.items():
            removed[name] = removed.get(name, 0) + number
            left -= number
        refused |= stayed
        gone = {(name, neuron) for name, neurons in chosen.items() for neuron in neurons} - stayed
        taken += sorted(blame_key(task, name, neuron) for name, neuron in gone)
        if not stayed:
            break
    return Removal(removed, len(refused)), taken


def _present(scores: Scores, places: Places, task: str, refused: set[tuple[str, int]]) -> Scores:
    """The neurons that are still there after removals, without those that have to stay."""
    return {
        name: {
            neuron: value
            for neuron, value in neurons.items()
            if task in places.sets.get(name, {}).get(neuron, ()) and (name, neuron) not in refused
        }
        for name, neurons in scores.items()
    }
