"""The pruning loop: task after task, a few steps of training, a few neurons less, within an accuracy budget."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace

from pamerge.pruning.alone import can_learn_alone, could_save_alone
from pamerge.pruning.averages import forget_averages
from pamerge.pruning.budget import Budget
from pamerge.pruning.pace import LARGEST_LAP, adapt, keep_back, set_off, slow_down, speed_up
from pamerge.pruning.path import PruningPath, PruningStep, expected_laps
from pamerge.pruning.ranking import cost_parts, expected_flops, sharers, sharing_most, subgraph_cost
from pamerge.pruning.removal import Removal
from pamerge.pruning.run_state import Ingredients, RunState
from pamerge.pruning.trainer import Trainer
from pamerge.pruning.turn import remove_least
from pamerge.tasks import TaskSet, all_subsets
from pamerge.training.evaluation import evaluate_batches
from pamerge.training.progress import Display, Log
from pamerge.training.run_state import STARTING_WEIGHTS, find_checkpoint

RECOVERIES = 3
"""A network that is over its budget is trained so often to come back, each time for twice as long: by far most of what
training brings back takes a few steps, and the rest takes many, in one go. Only a near miss is trained on."""

FIRST_RECOVERIES = 4
"""The same as long as none was within its budget: a merge may need much training before it can be judged."""

FEW = 3
"""If a task is over its budget and no more neurons than this were removed from it, their scores rise."""

WORTHWHILE = 0.25
"""A lap is judged when it has saved at least this share of what one round may save; until then it has more rounds."""

MOST_ROUNDS = 8
"""More than so many rounds are not waited for."""

APART = 1.5
"""A task goes alone first if its operations serve no more than so many tasks on average, itself among them."""

MOST_SUBSETS = 5
"""With more tasks than this, a step records the cost of single tasks and of all tasks only."""


class Loop:
    """One run of pruning."""

    def __init__(self, of: Ingredients, display: Display, log: Log) -> None:
        self.display, self.log = display, log
        found = find_checkpoint(of.checkpoint, of.identity) if of.checkpoint is not None else None
        of.fabric.barrier()  # nobody may write before everyone has looked
        if found is not None:  # of the first call, whose weights may be others
            of = replace(of, identity=found.meta["identity"])
        self.of, self.network, self.settings = of, of.network, of.settings
        self.tasks = [task for task in of.network.tasks if task in of.train.objectives]
        self.state = RunState(of, found.meta["neurons"] if found is not None else None)
        self.found = found
        self.taken: dict[str, list[str]] = {}
        self.trainer = Trainer(of, self.state, self.tasks, display)

    def run(self) -> PruningPath:
        """Prune to the end, or go on from a checkpoint to the end.

        Whatever ends it early, the network is left at a good point: that of the checkpoint, if there is one, so that
        the same call with the same network goes on from there.
        """
        try:
            if self.found is not None:
                self.display.note(f"going on from {self.of.checkpoint}")
                over = self.state.go_on(self.found)
                if over is not None:
                    return over
                self.log.cut(self.found.meta["log"])
                self.found = None
            if not self.state.at.steps:
                self._begin()
            while not self.state.at.stopped:
                self._lap()
                self.state.save(self.log.size())
            return self._finish()
        except BaseException:
            identity = {name: value for name, value in self.of.identity.items() if name != STARTING_WEIGHTS}
            found = find_checkpoint(self.of.checkpoint, identity) if self.of.checkpoint is not None else None
            if found is not None:
                self.state.return_to_checkpoint(found)
            else:
                self.state.restore(self.state.good)
            raise

    # -- laps and rounds -------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        at, tasks = self.state.at, self.tasks
        metrics = self._evaluate()
        at.reference = dict(self.of.reference or metrics)
        set_off(at, tasks, reach=float(self.settings.rounds))
        self.log.cut(0)
        self.log.write("start", tasks=list(tasks), **self.of.identity)
        over = self._budget.over(metrics)
        self._record({}, metrics, not over, recovered=False)
        self.state.good = self.state.snapshot()
        if not over:
            at.alone = self._apart()
        if self._missing() <= 0:
            if over:
                self._train_as_it_came(metrics)
            at.stopped = at.stopped or "the target was reached before anything was removed"
        elif not self._may_go_on():
            at.stopped = "the effort is spent"
        self.state.save(self.log.size())

    def _lap(self) -> None:
        """One or more rounds of every task that is still being pruned, then a look at the validation data.

        When that fails, each task has a lap alone, and another one for as long as that goes well; tasks that have more
        to themselves than they share go alone first. A network that is over its budget at entry, such as a merge, loses
        neurons before it is trained: that is quicker when it is small.
        """
        state, at = self.state, self.state.at
        judged_before = at.steps[at.kept].within
        at.lap += 1
        alone = at.alone.pop(0) if at.alone else None
        self.trainer.begin_lap(alone, self._budget.weights(at.steps[at.kept].metrics))
        turns = self._rounds([alone] if alone is not None else at.active)
        self.trainer.take_averages()
        removed = any(turn.removed for turn in turns.values())
        most = RECOVERIES if judged_before else FIRST_RECOVERIES
        metrics, recoveries = self._recover(self._evaluate(), most, at_any_pace=not judged_before and not removed)
        self.trainer.alone = None
        over = self._budget.over(metrics)
        self._record(turns, metrics, not over, recoveries > 0)
        if over or removed:
            at.idle = 0
        elif alone is None:
            at.idle += 1
        if over and not judged_before:
            self._train_as_it_came(metrics)
        elif over:
            self._go_back(over, alone)
            if alone is None:
                at.alone = [task for task in at.active if self._has_use_alone(task)]
        else:
            self._keep()
            if judged_before and self.settings.max_drop is not None:  # what a merge has done says nothing about laps
                adapt(at, turns, recoveries, self.settings.fraction)
            judged = set(self.tasks) if alone is None else {alone}
            calm = {task: calm for task, calm in self._calm(metrics, turns).items() if task in judged}
            speed_up(at, calm, self.settings.fraction)
            if alone is None and at.idle >= state.session.idle_laps:
                self._come_to_an_end("nothing is left that could be removed")
            if alone is None:
                at.alone = self._apart()
            elif turns[alone].removed and self._has_use_alone(alone):
                at.alone.append(alone)
        at.alone = [task for task in at.alone if task in at.active]
        if self._missing() <= 0:
            at.stopped = at.stopped or "the target was reached"
        if not self._may_go_on():
            at.stopped = at.stopped or "the effort is spent"
        if self.settings.laps is not None and at.lap >= self.settings.laps:
            at.stopped = at.stopped or f"{self.settings.laps} lap{'s' * (self.settings.laps > 1)} done"

    def _train_as_it_came(self, metrics: Mapping[str, float]) -> None:
        """Nothing was within its budget yet: train the network without removals, then take what is nearest to it.

        Args:
            metrics: of the network as it is now, after a lap that failed.
        """
        at, entry = self.state.at, self.state.at.steps[0].metrics
        if self.settings.recovery and self._may_go_on():
            self.state.restore(self.state.good)
            metrics, _ = self._recover(dict(entry), FIRST_RECOVERIES, at_any_pace=True)
            self._record({}, dict(metrics), not self._budget.over(metrics), recovered=True)
        if self._budget.worst(metrics) < self._budget.worst(entry):
            self._keep()
        else:
            self.state.restore(self.state.good)
        found = at.steps[at.kept].metrics
        over = [f"{task}: {found[task]:.4f}, not {at.reference[task]:.4f}" for task in self._budget.over(found)]
        if over:
            at.stopped = f"the network did not come within its budget ({', '.join(over)})"

    def _apart(self) -> list[str]:
        """Tasks that have more to themselves than they share: together, each would have to wait for the other ones.

        Without a budget nobody has to come back, so that nobody waits.
        """
        if self.settings.max_drop is None:
            return []
        return [
            task
            for task in self.state.at.active
            if sharers(self.network, task, self.tasks) <= APART and self._has_use_alone(task)
        ]

    def _has_use_alone(self, task: str) -> bool:
        """Whether a task could remove what a turn removes without taking anything from others, and learn meanwhile."""
        if len(self.tasks) == 1 or not can_learn_alone(self.network, task):
            return False
        saved = could_save_alone(self.network, self.state.places, task, self.of.mix, self.settings.remove)
        return saved >= self.settings.fraction * subgraph_cost(self.network, self.of.mix, task)

    def _rounds(self, tasks: list[str]) -> dict[str, Removal]:
        """As many rounds of each task as its reach says, the tasks in turn; more if they save next to nothing.

        A round is to save the same fraction of the expected cost whatever is shared. What it removes is divided among
        the tasks: otherwise, what all of them use would lose as many times as much in a lap as there are tasks, which
        no training brings back.

        To judge a lap and to train what it has harmed takes much longer than a round, whatever the lap has saved. In a
        small network one filter may be much more than a round is meant to save, so that a task whose subgraph has lost
        as much as a lap may take has no further turn.
        """
        at = self.state.at
        turns: dict[str, Removal] = {}
        self.taken = {task: [] for task in self.tasks}
        steps = math.ceil(self.settings.steps / len(tasks))
        planned = math.ceil(max(at.reach[task] for task in tasks))
        mix, fraction = self.of.mix, self.settings.fraction
        cost = expected_flops(self.network, mix)
        paces = {task: min(1.0, at.reach[task]) * fraction for task in tasks}
        fractions = {task: paces[task] / sharers(self.network, task, tasks) for task in tasks}
        most = max(LARGEST_LAP, self.settings.rounds * fraction)
        least = {task: (1 - most) * self.network.flops(task) for task in tasks}
        enough = WORTHWHILE * sum(paces[task] * part for task, part in cost_parts(self.network, mix, tasks).items())
        for number in range(max(planned, MOST_ROUNDS)):
            saved = cost - expected_flops(self.network, mix)
            if number and (not self._may_go_on() or self._missing() <= 0):
                break
            if number >= planned and saved >= enough:
                break
            before, idle = at.task_batches, True
            for task in [task for task in tasks if number < at.reach[task] or number >= planned]:
                if self.network.flops(task) <= least[task]:
                    continue
                wanted = paces[task] * cost_parts(self.network, mix, tasks)[task]
                found = self._turn(task, fractions[task], wanted, steps)
                turns[task] = turns[task] + found if task in turns else found
                idle = idle and not found.removed
            at.round_cost = max(at.round_cost, at.task_batches - before)
            if idle and self.state.session.idle_laps == 1:  # this pruner would have removed something if it could
                break
        return turns

    def _may_go_on(self, after: int = 0) -> bool:
        """Whether the effort allows another round of every task, to recover, and to fine-tune at the end.

        Args:
            after: training steps that come before all that.
        """
        effort, at = self.settings.effort, self.state.at
        training = self.trainer.task_batches(after + self.settings.recovery + self.settings.final)
        return effort is None or at.task_batches + at.round_cost + training <= effort

    def _recover(self, metrics: dict[str, float], most: int, at_any_pace: bool = False) -> tuple[dict[str, float], int]:
        """Train a network that is over its budget, as long as it would get there at the pace that it has.

        Each time takes twice as many steps as the one before, ``recovery`` at first, and is expected to bring as much.
        A network that is still over its budget after that goes on with steps as many as the last, as long as one more
        time should do: to go back costs all that it was trained for.

        Returns:
            The metrics after that, and how often it was trained.
        """
        missing, steps, times = self._budget.worst(metrics), self.settings.recovery, 0
        while not missing <= 0 and steps:  # what is not a number is missing, too
            self.trainer.weights = self._budget.weights(metrics)
            self.trainer.train(steps, "recovering", schedule="cosine")
            self.trainer.take_averages()
            metrics = self._evaluate()
            times += 1
            before, missing = missing, self._budget.worst(metrics)
            patient = at_any_pace and times < most
            hopeless = not missing <= max(1, most - times) * (before - missing) and not patient
            steps *= 2 if times < most else 1
            if hopeless or not self._may_go_on(after=steps - self.settings.recovery):
                break
        return metrics, times

    def _turn(self, task: str, fraction: float, wanted: float, steps: int) -> Removal:
        """Train a little, look at the neurons of one task's subgraph, remove the least important ones."""
        state = self.state
        self.trainer.train(steps, "pruning", task)
        state.at.task_batches += state.session.measure(task, state.feed)
        finished = TaskSet(self.network.tasks) - (set(state.at.active) if self.trainer.alone is None else {task})
        removal, taken = remove_least(self.of, state, task, fraction, wanted, finished)
        self.taken[task] += taken
        return removal

    # -- the budget ------------------------------------------------------------------------------------------------

    @property
    def _budget(self) -> Budget:
        return Budget(self.settings.max_drop, self.state.at.reference, self.of.train.objectives)

    def _missing(self) -> float:
        """How many operations are still above the target; infinite without one."""
        target = self.settings.target
        return math.inf if target is None else expected_flops(self.network, self.of.mix) - target

    def _keep(self) -> None:
        """The network as it is now, which was recorded last, is the good point."""
        self.state.at.kept = len(self.state.at.steps) - 1
        self.state.good = self.state.snapshot()

    def _go_back(self, over: list[str], alone: str | None) -> None:
        """Return to the last good point; whoever was over goes in smaller steps, and stops after some failures.

        Those that share most of what they compute with it go no faster: what they remove is what it loses. That is
        nothing in a lap alone.
        """
        at = self.state.at
        self.state.restore(self.state.good)
        failed = [task for task in over if task in at.active] or list(at.active)
        for task in failed:
            self._blame(task)
        slow_down(at, failed, self.settings.patience)
        for task in failed if alone is None else ():
            keep_back(at, task, sharing_most(self.network, task, self.tasks))
        if not at.active:
            self._come_to_an_end("the budget is spent")

    def _come_to_an_end(self, why: str) -> None:
        """Stop, unless there are tasks that have only failed too often, and effort for another start."""
        at, settings = self.state.at, self.settings
        at.stopped = why
        paused = len(at.active) < len(self.tasks)
        if paused and settings.effort is not None and settings.final and self._may_go_on(after=settings.final):
            self._start_afresh()

    def _start_afresh(self) -> None:
        """Use effort that is left when all tasks have stopped: train the good point as at the end, then try again.

        What is learnt in laps that fail is lost, so that without this only the luck of the first laps would count.
        """
        state, at = self.state, self.state.at
        self.trainer.begin_lap(None, self._budget.weights(at.steps[at.kept].metrics))
        self.trainer.train(self.settings.final, "training", schedule="cosine")
        metrics = self._evaluate()
        after, before = (max(self._budget.excesses(found).values()) for found in (metrics, at.steps[at.kept].metrics))
        if after < before:
            at.lap += 1
            self._record({}, metrics, within=True, recovered=True)
            self._keep()
            forget_averages(state.optimizer)
        else:
            state.restore(state.good)
        set_off(at, self.tasks, reach=0.5)
        at.idle = 0
        at.stopped = ""

    def _blame(self, task: str) -> None:
        """If it was few neurons that put a task over its budget, they are remembered."""
        blame = self.state.at.blame
        turns = [task] if self.settings.remove == "task" else list(self.taken)  # whose turns took neurons from it
        suspects = [neuron for turn in turns for neuron in self.taken.get(turn, [])]
        if len(suspects) <= FEW:
            blame.update({neuron: blame.get(neuron, 0) + 1 for neuron in suspects})

    def _calm(self, metrics: Mapping[str, float], turns: Mapping[str, Removal]) -> dict[str, bool]:
        """Which tasks have half of their budgets left or more.

        Laps without any removal do not count, nor do those in which the pruner removed nothing from the task itself.
        """
        most = self.settings.max_drop
        if most is None or not any(turn.removed for turn in turns.values()):
            return {}
        return {
            task: excess <= -most / 2
            for task, excess in self._budget.excesses(metrics).items()
            if task not in turns or turns[task].removed
        }

    def _finish(self) -> PruningPath:
        """Train once more at the point that was kept, unless that made it worse than the budget allows."""
        at, state = self.state.at, self.state
        metrics = dict(at.steps[at.kept].metrics)
        if self.settings.final:
            self.trainer.begin_lap(None, self._budget.weights(metrics))
            self.trainer.train(self.settings.final, "final fine-tuning", schedule="cosine")
            after = self._evaluate()
            if self._budget.over(after) and not self._budget.over(metrics):
                state.restore(state.good)
            else:
                metrics = after
        path = PruningPath(
            steps=tuple(at.steps),
            kept=at.kept,
            reference=at.reference,
            max_drop=self.settings.max_drop,
            final=metrics,
            stopped=at.stopped,
            task_batches=at.task_batches,
            seconds=state.seconds(),
        )
        self.log.write("end", stopped=path.stopped, kept=path.kept, metrics=metrics, seconds=path.seconds)
        state.save(self.log.size(), path)
        return path

    def _evaluate(self) -> dict[str, float]:
        return evaluate_batches(self.network, self.of.run_network, self.of.validation, self.of.fabric)

    def _record(self, turns: Mapping[str, Removal], metrics: dict[str, float], within: bool, recovered: bool) -> None:
        at, tasks = self.state.at, self.network.tasks
        subsets = [s for s in all_subsets(tasks) if len(tasks) <= MOST_SUBSETS or len(s) in (1, len(tasks))]
        step = PruningStep(
            lap=at.lap,
            removed={task: dict(turn.removed) for task, turn in turns.items()},
            refused=sum(turn.refused for turn in turns.values()),
            metrics=metrics,
            flops={str(subset): self.network.flops(subset) for subset in subsets},
            task_batches=at.task_batches,
            within=within,
            recovered=recovered,
        )
        at.steps.append(step)
        self.log.write("lap", **asdict(step), seconds=self.state.seconds())
        cost = expected_flops(self.network, self.of.mix)
        self.display.total = expected_laps(at.steps, cost, self.settings.target, self.settings.laps)
        self.display.update(at.lap, metrics=metrics, flops={task: step.flops[task] for task in self.tasks})
