"""Which tasks of a network can be pruned without the others."""

from __future__ import annotations

from collections.abc import Iterable

from pamerge.errors import PamergeError
from pamerge.network.network import MultitaskNetwork
from pamerge.tasks import TaskSet, resolve_tasks


def independent_parts(network: MultitaskNetwork) -> list[TaskSet]:
    """The tasks, those together that share neurons directly or through others.

    Each part is best pruned alone, as one would prune separate networks: if tasks that share nothing were judged
    together, each would have to go back whenever another one fails.
    """
    parts = [TaskSet({task}) for task in network.tasks]
    for junction in network.junctions.values():
        for group in () if junction.fixed else junction.groups:
            joined = TaskSet(task for part in parts if part & group for task in part)
            parts = [joined if joined & part else part for part in parts]
    return list(dict.fromkeys(parts))


def chosen_tasks(network: MultitaskNetwork, tasks: Iterable[str] | str | None) -> TaskSet:
    """The tasks to prune; raises if others share neurons with them."""
    chosen = resolve_tasks(tasks, network.tasks)
    for junction in network.junctions.values():
        for group in junction.groups:
            if not junction.fixed and group & chosen and group - chosen:
                raise PamergeError(
                    f"tasks={str(chosen)!r} share neurons with {group - chosen} at {junction.name!r}, and others would "
                    "change with them; expected tasks that share none with the rest."
                )
    return chosen
