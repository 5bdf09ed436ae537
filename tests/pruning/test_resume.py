from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pruning.around import neurons, quickly
from training.small import OBJECTIVES, batches, loader, merged, same_weights, weights

import pamerge
from pamerge import PamergeError
from pamerge.pruning import VIB, Magnitude, Taylor
from pamerge.pruning.loop import Loop
from pamerge.pruning.trainer import Trainer

SCRIPT = Path(__file__).parent / "killed.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(SCRIPT), str(folder)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("pruner", ["taylor", "vib"])
def test_a_run_that_is_killed_again_and_again_ends_as_if_nothing_had_happened(pruner, folder):
    whole, killed = (pamerge.load(folder / f"{pruner} {name}.pam") for name in ("whole", "killed"))
    assert neurons(whole) == neurons(killed)
    assert same_weights(whole, weights(killed))
    paths = [(folder / f"{pruner} {name}.pam.path").read_text() for name in ("whole", "killed")]
    assert paths[0] == paths[1]
    assert whole.flops() < merged().flops()


@pytest.mark.slow
@pytest.mark.parametrize("pruner", ["taylor", "vib"])
def test_kills_leave_one_checkpoint_and_one_log_without_gaps_behind(pruner, folder):
    assert sorted(path.name for path in (folder / pruner).iterdir()) == ["checkpoint", "checkpoint.log.jsonl"]
    events = [json.loads(line) for line in (folder / pruner / "checkpoint.log.jsonl").read_text().splitlines()]
    assert [event["lap"] for event in events if event["event"] == "lap"] == list(range(len(events) - 2))
    assert [events[0]["event"], events[-1]["event"]] == ["start", "end"]


class InterruptedByTestError(Exception):
    pass


def arguments(pruner, **options):
    data = loader(40, shuffle=3), batches(2, seed=1), OBJECTIVES
    return data, {"pruner": pruner, "laps": 5, "steps": 2, "fraction": 0.08, **options}


@pytest.mark.parametrize(
    ("pruner", "where"),
    [(Taylor(batches=1), "_finish"), (VIB(gamma=0.1, lr=1.0), "_turn"), (Magnitude(), "_evaluate")],
    ids=["Taylor", "VIB", "Magnitude"],
)
def test_the_same_call_with_the_interrupted_network_goes_on(pruner, where, tmp_path, monkeypatch):
    """As in a notebook: the network in memory has shrunk already."""
    data, options = arguments(pruner, remove="task" if where == "_finish" else "neuron")
    whole = merged(dropout=0.2)
    expected = quickly(whole, *data, **options)
    network = merged(dropout=0.2)
    data, options = arguments(pruner, remove=options["remove"], checkpoint=tmp_path / "c")
    original, calls = getattr(Loop, where), []

    def interrupted(self, *rest):
        calls.append(where)
        result = original(self, *rest) if where != "_finish" else None
        if len(calls) == {"_turn": 11, "_evaluate": 5, "_finish": 1}[where]:
            raise InterruptedByTestError
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Loop, where, interrupted)
        with pytest.raises(InterruptedByTestError):
            quickly(network, *data, **options)
    assert not network.training
    data, _ = arguments(pruner)
    path = quickly(network, *data, **options)
    assert neurons(network) == neurons(whole)
    assert same_weights(network, weights(whole))
    assert [step.metrics for step in path] == [step.metrics for step in expected]
    assert path.task_batches == expected.task_batches


def test_a_run_that_is_over_returns_its_path_at_once(tmp_path, monkeypatch):
    data, options = arguments(Magnitude(), checkpoint=tmp_path / "c")
    network = merged()
    path = quickly(network, *data, **options)
    monkeypatch.setattr(Trainer, "train", None)
    again = merged()
    assert quickly(again, *data, **options) == path
    assert same_weights(again, weights(network))


def test_a_checkpoint_of_another_call_is_refused(tmp_path):
    data, options = arguments(Magnitude(), checkpoint=tmp_path / "c", laps=1)
    quickly(merged(), *data, **options)
    with pytest.raises(PamergeError, match=r"belongs to another call \(pruner: Magnitude\(\) there, Taylor"):
        quickly(merged(), *data, **{**options, "pruner": Taylor()})
    with pytest.raises(PamergeError, match=r"belongs to another call \(fraction: 0.08 there, 0.5 here\)"):
        quickly(merged(), *data, **{**options, "fraction": 0.5})
    with pytest.raises(PamergeError, match=r"belongs to another call \(rounds: 1 there, 2 here\)"):
        quickly(merged(), *data, **options, rounds=2)
    data, options = arguments(Magnitude(), checkpoint=tmp_path / "two", laps=1)
    quickly(merged(), *data, **options, rounds=2)
    with pytest.raises(PamergeError, match=r"belongs to another call \(rounds: 2 there, 1 here\)"):
        quickly(merged(), *data, **options)
    with pytest.raises(PamergeError, match="belongs to another call"):
        quickly(merged(seed=4), *data, **options)


def test_the_log_tells_what_happened_in_every_lap(tmp_path):
    data, options = arguments(Magnitude(), checkpoint=tmp_path / "c", laps=2)
    path = quickly(merged(), *data, **options)
    events = [json.loads(line) for line in (tmp_path / "c.log.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["start", "lap", "lap", "lap", "end"]
    assert events[2]["metrics"] == path[1].metrics
    assert events[2]["flops"] == path[1].flops
    assert events[2]["removed"] == path[1].removed
    assert events[0]["pruner"] == "Magnitude()"
    assert events[-1]["stopped"] == path.stopped


def test_generators_of_a_pruners_own_are_kept(tmp_path, monkeypatch):
    from pamerge.pruning import QuietSession

    class Random:
        def start(self, surroundings):
            class Session(QuietSession):
                def importance(self, task):
                    return {
                        name: {n: float(torch.rand((), generator=surroundings.generator)) for n in found}
                        for name, found in surroundings.places.served(task).items()
                    }

            return Session()

    data, options = arguments(Random(), laps=4)
    whole = merged()
    quickly(whole, *data, **options)
    network, laps = merged(), []
    lap = Loop._lap

    def stop_at_third(self):
        laps.append(1)
        if len(laps) == 3:
            raise InterruptedByTestError
        lap(self)

    data, options = arguments(Random(), laps=4, checkpoint=tmp_path / "c")
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_lap", stop_at_third)
        with pytest.raises(InterruptedByTestError):
            quickly(network, *data, **options)
    data, _ = arguments(Random())
    quickly(network, *data, **options)
    assert neurons(network) == neurons(whole)
