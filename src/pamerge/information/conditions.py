"""The conditions under which a network can be pruned task by task (Theorem 1), as numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from pamerge.errors import PamergeError
from pamerge.information.gaussian import Gaussian, warn_if_few
from pamerge.information.joint import JointGaussian, complete_samples
from pamerge.information.labels import ArrayLike, as_tasks, checked_activations
from pamerge.tasks import TaskSet, all_subsets

_DEFAULT = Gaussian()


@dataclass(frozen=True)
class PairConditions:
    """What a layer shows about two disjoint task sets τA and τB; all information in bits.

    The layer's neurons that are active for τA only are A, those for τB only are B, those for both are M. The
    first three numbers are zero where Theorem 1 holds; they are signed, since co-information can be negative
    and a bias is subtracted. The other four are what Theorem 2 replaces them by: *misplaced* should be small,
    *relevant* large.

    Attributes:
        a: τA.
        b: τB.
        co_information: I(A; B; Yᴬ; Yᴮ).
        private_a: I(M; Yᴬ | A, Yᴮ), what only the shared neurons say about τA that is of no use to τB.
        private_b: I(M; Yᴮ | B, Yᴬ).
        misplaced_a: I(A; Yᴮ).
        misplaced_b: I(B; Yᴬ).
        relevant_a: I(A; Yᴬ).
        relevant_b: I(B; Yᴮ).
        neurons: The numbers of neurons in A, B and M.
        samples: The number of samples that carry the labels of both; the first three numbers are NaN if it is
            too small.
    """

    a: TaskSet
    b: TaskSet
    co_information: float
    private_a: float
    private_b: float
    misplaced_a: float
    misplaced_b: float
    relevant_a: float
    relevant_b: float
    neurons: tuple[int, int, int]
    samples: int

    def swapped(self) -> PairConditions:
        """The same with τA and τB exchanged."""
        first, second, both = self.neurons
        return replace(
            self,
            a=self.b,
            b=self.a,
            private_a=self.private_b,
            private_b=self.private_a,
            misplaced_a=self.misplaced_b,
            misplaced_b=self.misplaced_a,
            relevant_a=self.relevant_b,
            relevant_b=self.relevant_a,
            neurons=(second, first, both),
        )


@dataclass(frozen=True)
class LayerConditions:
    """The conditions of a layer for every pair of disjoint task sets.

    Attributes:
        pairs: One entry for each unordered pair, ``a`` before ``b`` in the order of task sets.
    """

    pairs: tuple[PairConditions, ...]

    def pair(self, a: Iterable[str], b: Iterable[str]) -> PairConditions:
        """The entry of two task sets, in this order."""
        first, second = TaskSet(a), TaskSet(b)
        for found in self.pairs:
            if (found.a, found.b) == (first, second):
                return found
            if (found.b, found.a) == (first, second):
                return found.swapped()
        known = "; ".join(f"{found.a} and {found.b}" for found in self.pairs)
        raise PamergeError(f"There is no pair of task sets {str(first)!r} and {str(second)!r}; there are: {known}.")


def layer_conditions(
    activations: ArrayLike,
    task_sets: Sequence[TaskSet],
    labels: Mapping[str, ArrayLike],
    estimator: Gaussian = _DEFAULT,
) -> LayerConditions:
    r"""The conditions of Theorem 1, and of its extension to K tasks, for one layer.

    A neuron is active when any task of its task set is executed, so L̃^τ holds the neurons whose task set
    meets τ, and for disjoint τA and τB those of ``A = L̃^τA \ L̃^τB`` meet τA only, those of
    ``M = L̃^τA ∩ L̃^τB`` both. With J(S; Y) the joint Gaussian information of neurons about all labels of
    the tasks named (:class:`~pamerge.information.joint.JointGaussian`), and
    ``c(S) = J(S; Yᴬ Yᴮ) − J(S; Yᴬ) − J(S; Yᴮ)``, which is ``I(Yᴬ; Yᴮ | S) − I(Yᴬ; Yᴮ)``:

        I(A; B; Yᴬ; Yᴮ) = c(A ∪ B) − c(A) − c(B)                      (Bell 2003)
        I(M; Yᴬ | A, Yᴮ) = J(A ∪ M; Yᴬ Yᴮ) − J(A ∪ M; Yᴮ) − J(A; Yᴬ Yᴮ) + J(A; Yᴮ)

    These are measured on the samples that carry all labels of both, from one covariance; the four numbers of
    Theorem 2 each on the samples that carry the labels they are about. All of it is joint information, while
    traces sum over labels; the two agree for a single label.

    >>> x = torch.randn(2000, 2, generator=torch.Generator().manual_seed(0))
    >>> sets = [TaskSet({"left"}), TaskSet({"right"})]
    >>> conditions = layer_conditions(x, sets, {"left": x[:, 0], "right": x[:, 1]})
    >>> pair = conditions.pair({"left"}, {"right"})
    >>> pair.relevant_a > 3, abs(pair.misplaced_a) < 0.01, abs(pair.co_information) < 0.01, pair.private_a
    (True, True, True, 0.0)

    Args:
        activations: ``(N, M)``, or ``(N, M, P)`` for P values a neuron.
        task_sets: The task set of each neuron.
        labels: The labels of each task; missing ones marked.
        estimator: The Gaussian estimator; its ridge is taken of the whole layer.

    Raises:
        PamergeError: If shapes disagree, if a neuron has no tasks, or if there are fewer than two tasks.
    """
    estimator.check()
    tasks = as_tasks(labels)
    x = checked_activations(activations, len(next(iter(tasks.values()))))
    sets = _checked_sets(task_sets, x.shape[1])
    if len(tasks) < 2:
        raise PamergeError(f"labels are of {len(tasks)} task; expected at least two, since conditions are about pairs.")
    pool = _Pool(x, tasks, estimator)
    return LayerConditions(tuple(_conditions(pool, sets, a, b) for a, b in _disjoint_pairs(tasks)))


class _Pool:
    """Joint Gaussians by the tasks whose labels they need; those of the same samples are one."""

    def __init__(self, x: torch.Tensor, tasks: dict[str, torch.Tensor], estimator: Gaussian) -> None:
        self._x, self._tasks, self._estimator = x, tasks, estimator
        self._complete = {task: complete_samples({task: values}) for task, values in tasks.items()}
        self._known: dict[bytes, JointGaussian] = {}

    def samples(self, wanted: TaskSet) -> torch.Tensor:
        return torch.stack([self._complete[task] for task in sorted(wanted)]).all(0)

    def joint(self, wanted: TaskSet) -> JointGaussian | None:
        """The joint Gaussian on the samples that carry all labels of these tasks; None if too few."""
        rows = self.samples(wanted)
        if int(rows.sum()) < 4:
            return None
        key = rows.numpy().tobytes()
        if key not in self._known:
            # All tasks that are labelled on these samples, so that other pairs find the same covariance.
            shared = [task for task, complete in self._complete.items() if bool(complete[rows].all())]
            warn_if_few(int(rows.sum()), self._x[0].numel())
            labels = {task: self._tasks[task][rows] for task in shared}
            self._known[key] = self._estimator.joint(self._x[rows], labels)
        return self._known[key] if self._known[key].enough(wanted) else None


def _conditions(pool: _Pool, sets: Sequence[TaskSet], a: TaskSet, b: TaskSet) -> PairConditions:
    only_a = frozenset(j for j, tasks in enumerate(sets) if tasks & a and not tasks & b)
    only_b = frozenset(j for j, tasks in enumerate(sets) if tasks & b and not tasks & a)
    both = frozenset(j for j, tasks in enumerate(sets) if tasks & a and tasks & b)
    joint = pool.joint(a | b)

    def information(neurons: frozenset[int], about: TaskSet) -> float:
        return math.nan if joint is None else joint.information(neurons, about)

    def coupling(neurons: frozenset[int]) -> float:
        return information(neurons, a | b) - information(neurons, a) - information(neurons, b)

    def private(own: frozenset[int], other: TaskSet) -> float:
        if joint is not None and not both:
            return 0.0
        with_shared = information(own | both, a | b) - information(own | both, other)
        return with_shared - information(own, a | b) + information(own, other)

    def alone(neurons: frozenset[int], about: TaskSet) -> float:
        own = pool.joint(about)
        return math.nan if own is None else own.information(neurons, about)

    return PairConditions(
        a=a,
        b=b,
        co_information=coupling(only_a | only_b) - coupling(only_a) - coupling(only_b),
        private_a=private(only_a, b),
        private_b=private(only_b, a),
        misplaced_a=alone(only_a, b),
        misplaced_b=alone(only_b, a),
        relevant_a=alone(only_a, a),
        relevant_b=alone(only_b, b),
        neurons=(len(only_a), len(only_b), len(both)),
        samples=int(pool.samples(a | b).sum()),
    )


def _disjoint_pairs(tasks: Iterable[str]) -> Iterator[tuple[TaskSet, TaskSet]]:
    subsets = sorted(all_subsets(tasks))
    for place, a in enumerate(subsets):
        yield from ((a, b) for b in subsets[place + 1 :] if not a & b)


def _checked_sets(task_sets: Sequence[TaskSet], neurons: int) -> list[TaskSet]:
    sets = [TaskSet(tasks) for tasks in task_sets]
    if len(sets) != neurons:
        raise PamergeError(f"task_sets has {len(sets)} entries for {neurons} neurons; expected one for each.")
    if not all(sets):
        raise PamergeError(f"Neuron {next(j for j, s in enumerate(sets) if not s)} has an empty task set.")
    return sets
