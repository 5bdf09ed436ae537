"""Tasks that share nothing are pruned one by one, also if the run is killed in between."""

from __future__ import annotations

import pytest
import torch
from experiments.test_runner import CONFIG
from training.small import INPUT, OBJECTIVES, original

import pamerge
from pamerge import Assigned
from pamerge.experiments import Choice, Config, run
from pamerge.pruning.budget import Budget
from pamerge.pruning.loop import Loop
from pamerge.pruning.parts import independent_parts

SEPARATE = Config(**{**vars(CONFIG), "schemes": (Choice("separate"),)})


@pytest.mark.parametrize(
    ("groups", "parts"),
    [
        ([], ["parts", "shape", "size"]),
        ([{"shape", "size"}], ["parts", "shape+size"]),
        ([{"shape", "size"}, {"parts", "size"}], ["parts+shape+size"]),
        ([{"shape", "size", "parts"}], ["parts+shape+size"]),
    ],
)
def test_tasks_that_share_neurons_directly_or_not_are_one_part(groups, parts):
    networks = {task: original(task) for task in OBJECTIVES}

    def choose(junction):
        found = dict(junction.task_sets())
        for number, group in enumerate(groups):
            donors = [neuron for neuron, tasks in junction.task_sets().items() if set(tasks) <= group]
            found[donors[number]] = pamerge.TaskSet(group)
        return found

    network = pamerge.merge(networks, [torch.zeros(2, *INPUT)], Assigned(choose))
    assert sorted(map(str, independent_parts(network))) == parts


@pytest.mark.filterwarnings("ignore:Nothing could be removed")
def test_a_task_that_fails_does_not_send_the_other_one_back(tmp_path, monkeypatch):
    monkeypatch.setattr(Budget, "excesses", lambda self, metrics: {task: float(task == "A") for task in metrics})
    (result,) = run(SEPARATE, tmp_path)
    flops, original = result["schemes"]["separate"]["flops"], result["original_flops"]
    assert flops["A"] == original["A"]
    assert flops["B"] < original["B"]
    assert result["schemes"]["separate"]["stopped"].count(";") == 1
    assert set(result["schemes"]["separate"]["validation"]) == {"A", "B"}


@pytest.mark.parametrize("task", ["A", "B"])
def test_a_run_that_ends_in_the_middle_of_a_part_goes_on_there(task, tmp_path, monkeypatch):
    (expected,) = run(SEPARATE, tmp_path / "whole")
    laps: list[str] = []
    lap = Loop._lap

    def stop(self):
        lap(self)
        laps.append(self.tasks[0])
        if laps.count(task) == 2 and len(laps) < 1000:
            laps.extend([""] * 1000)
            raise KeyboardInterrupt

    monkeypatch.setattr(Loop, "_lap", stop)
    with pytest.raises(KeyboardInterrupt):
        run(SEPARATE, tmp_path / "killed")
    (found,) = run(SEPARATE, tmp_path / "killed")
    for result in (expected, found):
        result.pop("environment")
        result["schemes"]["separate"] = {
            name: value
            for name, value in result["schemes"]["separate"].items()
            if name not in ("seconds", "peak_gib", "threads")
        }
    assert found == expected
    path = found["schemes"]["separate"]["path"]
    assert all(set(point["metrics"]) == {"A", "B"} for point in path)
    assert not list((tmp_path / "killed" / "stages").glob("*.checkpoint"))
