"""Neurons that could not be spared: when one of few removals put its task over the budget, its score rises."""

from __future__ import annotations

from collections.abc import Mapping

from pamerge.pruning.protocol import Scores


def blame_key(task: str, junction: str, neuron: int) -> str:
    """A task's neuron, as a key of plain JSON."""
    return f"{task} {junction} {neuron}"


def raised(scores: Scores, blame: Mapping[str, int], task: str) -> Scores:
    """Scores in which every neuron stands higher by its size for each time that it was to blame, so others are tried.

    Args:
        scores: of the neurons of a task's subgraph.
        blame: how often each neuron was to blame, by :func:`blame_key`.
        task: the task.
    """

    def higher(value: float, times: int) -> float:
        return value + (2**times - 1) * abs(value) if times else value

    return {
        name: {n: higher(value, blame.get(blame_key(task, name, n), 0)) for n, value in neurons.items()}
        for name, neurons in scores.items()
    }
