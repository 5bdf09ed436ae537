"""Task names and task sets, the τ of the paper."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from functools import total_ordering

from pamerge.errors import PamergeError

SEPARATOR = "+"
_FORBIDDEN = set("+./\\\0\n")


@total_ordering
class TaskSet(frozenset[str]):
    """A set of tasks with an order (small sets first, then by name) and a readable ``str``.

    >>> TaskSet({"gender", "age"})
    TaskSet('age+gender')
    >>> str(TaskSet({"gender", "age"})), TaskSet({"b"}) < TaskSet({"a", "c"})
    ('age+gender', True)
    >>> TaskSet.parse("age+gender") == {"age", "gender"}
    True

    The operators of ``frozenset`` work as usual, so that ``<=`` and ``<`` between task sets would be ambiguous:
    ``<`` and ``>`` are the sorting order, ``issubset`` and ``issuperset`` ask for inclusion.
    """

    @classmethod
    def parse(cls, text: str) -> TaskSet:
        """The task set that ``str`` wrote."""
        return cls(text.split(SEPARATOR)) if text else cls()

    def _key(self) -> tuple[int, list[str]]:
        return len(self), sorted(self)

    def __lt__(self, other: object) -> bool:
        return self._key() < other._key() if isinstance(other, TaskSet) else NotImplemented

    def __le__(self, other: object) -> bool:
        return self._key() <= other._key() if isinstance(other, TaskSet) else NotImplemented

    def __gt__(self, other: object) -> bool:
        return self._key() > other._key() if isinstance(other, TaskSet) else NotImplemented

    def __ge__(self, other: object) -> bool:
        return self._key() >= other._key() if isinstance(other, TaskSet) else NotImplemented

    def __or__(self, other: Iterable[str]) -> TaskSet:  # type: ignore[override]
        return TaskSet(frozenset.__or__(self, frozenset(other)))

    def __and__(self, other: Iterable[str]) -> TaskSet:  # type: ignore[override]
        return TaskSet(frozenset.__and__(self, frozenset(other)))

    def __sub__(self, other: Iterable[str]) -> TaskSet:  # type: ignore[override]
        return TaskSet(frozenset.__sub__(self, frozenset(other)))

    def __str__(self) -> str:
        return SEPARATOR.join(sorted(self))

    def __repr__(self) -> str:
        return f"TaskSet({str(self)!r})"


def check_task_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names as a tuple, or an error that says which one cannot be a task's name."""
    names = tuple(names)
    if not names:
        raise PamergeError("No tasks were given; expected at least one named network.")
    for name in names:
        if not isinstance(name, str) or not name.strip() or _FORBIDDEN & set(name):
            raise PamergeError(
                f"{name!r} cannot be the name of a task: it must be a non-empty string without any of + . / \\ "
                "(names become part of parameter names and file names)."
            )
    return names


def resolve_tasks(tasks: Iterable[str] | str | None, known: Iterable[str]) -> TaskSet:
    """The subset of tasks that a user asked for: all of them for ``None``, or an error that names the unknown ones."""
    known = tuple(known)
    if tasks is None:
        return TaskSet(known)
    chosen = TaskSet({tasks}) if isinstance(tasks, str) else TaskSet(tasks)
    if not chosen:
        raise PamergeError(f"An empty set of tasks was asked for; expected some of: {', '.join(known)}.")
    unknown = sorted(set(chosen) - set(known))
    if unknown:
        raise PamergeError(f"Unknown task(s) {', '.join(map(repr, unknown))}; this network has: {', '.join(known)}.")
    return chosen


def all_subsets(tasks: Iterable[str]) -> Iterator[TaskSet]:
    """Every non-empty subset, small ones first, in the order in which the tasks are given."""
    tasks = tuple(tasks)
    for size in range(1, len(tasks) + 1):
        for combination in itertools.combinations(tasks, size):
            yield TaskSet(combination)
