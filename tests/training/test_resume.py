from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.utils.data import DataLoader
from training import resumable
from training.small import OBJECTIVES, Labelled, batches, merged, original, same_weights, weights

from pamerge import PamergeError
from pamerge.training import DivergenceError, FinetuneResult, finetune
from pamerge.training.divergence import DivergenceWatch

quietly = partial(finetune, progress=False, checkpoint_seconds=0.0)


@pytest.fixture(autouse=True)
def one_thread():
    """Sums in another order are other sums."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def log_of(checkpoint: Path) -> list[dict]:
    lines = [json.loads(line) for line in Path(f"{checkpoint}.log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def untimed(result: FinetuneResult) -> FinetuneResult:
    return replace(result, seconds=0.0, history=tuple(replace(record, seconds=0.0) for record in result.history))


@pytest.mark.slow
def test_a_run_that_was_killed_ends_as_if_it_had_not_been(tmp_path):
    folders = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "OMP_NUM_THREADS": "1"}
    log = tmp_path / "run.ckpt.log.jsonl"

    def start(wait: float) -> subprocess.Popen[bytes]:
        command = [sys.executable, resumable.__file__, str(tmp_path / "run.ckpt"), str(tmp_path / "end"), str(wait)]
        return subprocess.Popen(command, env=environment)

    process = start(0.1)
    try:
        while not log.exists() or resumable.batches_used(log.read_text().splitlines()) < 11:  # in the second epoch
            assert process.poll() is None
            time.sleep(0.01)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert not (tmp_path / "end").exists()
    assert start(0.0).wait(timeout=300) == 0
    network, _ = resumable.run(str(tmp_path / "whole.ckpt"))
    assert same_weights(network, load_file(tmp_path / "end"))
    assert log_of(tmp_path / "run.ckpt") == log_of(tmp_path / "whole.ckpt")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("run")) == [
        "run.ckpt",
        "run.ckpt.log.jsonl",
    ]


class InterruptedRunError(Exception):
    """Stands for whatever ends a run."""


class Fragile(Labelled):
    """Fails when its samples were read ``after`` times."""

    def __init__(self, count: int, after: float = float("inf")) -> None:
        super().__init__(count)
        self.after = after

    def __getitem__(self, index: int):
        self.after -= 1
        if self.after < 0:
            raise InterruptedRunError
        return super().__getitem__(index)


def shuffled(data: Labelled, generator: bool) -> DataLoader:
    return DataLoader(data, 8, shuffle=True, generator=torch.Generator().manual_seed(3) if generator else None)


LENGTHS = {
    "epochs": {"epochs": 2},
    "steps": {"steps": 7},
    "validations within an epoch": {"epochs": 3, "validate_every": 2, "patience": 9},
    "distillation": {"epochs": 2, "distill": 0.5, "teachers": {task: original(task) for task in OBJECTIVES}},
    "momentum": {"epochs": 2, "optimizer": partial(torch.optim.SGD, momentum=0.9)},
}


@pytest.mark.parametrize(
    ("how", "own_generator", "after_batches"),
    [
        ("epochs", True, 0),
        ("epochs", False, 4),
        ("steps", True, 3),
        ("steps", False, 2),
        ("validations within an epoch", True, 2),
        ("validations within an epoch", False, 4),
        ("distillation", False, 5),
        ("momentum", True, 4),
    ],
)
def test_a_run_that_was_interrupted_anywhere_goes_on(tmp_path, how, own_generator, after_batches):
    def run(checkpoint: Path, after: float):
        network = merged(dropout=0.3)
        # the data is read once before training, in which nothing fails
        data = Fragile(24, 24 + after)
        torch.manual_seed(11)
        train = shuffled(data, own_generator)
        arguments = {"validation": batches(1, seed=1), "lr": 3e-3, **LENGTHS[how]}
        return network, quietly(network, train, OBJECTIVES, checkpoint=checkpoint, **arguments)

    whole, result = run(tmp_path / "whole", 1e9)
    with pytest.raises(InterruptedRunError):
        run(tmp_path / "parts", 8 * after_batches + 3)
    network, again = run(tmp_path / "parts", 1e9)
    assert same_weights(network, weights(whole))
    assert untimed(again) == untimed(result)
    assert log_of(tmp_path / "parts") == log_of(tmp_path / "whole")


def test_the_same_network_goes_on_after_an_interruption_in_the_same_process(tmp_path):
    whole = merged()
    quietly(whole, shuffled(Labelled(40), True), OBJECTIVES, epochs=2, checkpoint=tmp_path / "whole")
    network = merged()
    with pytest.raises(InterruptedRunError):
        quietly(network, shuffled(Fragile(40, 80), True), OBJECTIVES, epochs=2, checkpoint=tmp_path / "parts")
    assert not network.training
    quietly(network, shuffled(Labelled(40), True), OBJECTIVES, epochs=2, checkpoint=tmp_path / "parts")
    assert same_weights(network, weights(whole))


def test_divergence_is_measured_from_the_first_losses_even_after_an_interruption(tmp_path, monkeypatch):
    firsts = []

    def check(self, step, losses):
        usual(self, step, losses)
        firsts.append(dict(self.first))

    usual = DivergenceWatch.check
    monkeypatch.setattr(DivergenceWatch, "check", check)
    arguments = {"epochs": 2, "checkpoint": tmp_path / "c"}
    with pytest.raises(InterruptedRunError):
        quietly(merged(), shuffled(Fragile(40, 80), True), OBJECTIVES, **arguments)
    quietly(merged(), shuffled(Labelled(40), True), OBJECTIVES, **arguments)
    assert firsts[0] == firsts[-1]


def test_a_run_that_is_over_gives_its_result_at_once(tmp_path):
    first, data = merged(), shuffled(Labelled(24), True)
    result = quietly(first, data, OBJECTIVES, epochs=2, validation=batches(1), checkpoint=tmp_path / "c")
    state = torch.get_rng_state()
    second = merged()
    torch.rand(3)
    again = quietly(second, data, OBJECTIVES, epochs=2, validation=batches(1), checkpoint=tmp_path / "c")
    assert again == result
    assert same_weights(second, weights(first))
    assert torch.equal(torch.get_rng_state(), state)
    assert quietly(first, data, OBJECTIVES, epochs=2, validation=batches(1), checkpoint=tmp_path / "c") == result


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lr": 0.1}, r"lr: 0.0005 there, 0.1 here"),
        ({"epochs": 3}, r"epochs: 2 there, 3 here"),
        ({"optimizer": torch.optim.SGD}, r"optimizer: Adam\(\) there, SGD\(\) here"),
        ({"seed": 1}, "seed: None there, 1 here"),
        ({"network": merged(seed=4)}, r"starting weights: .* there, .* here"),
    ],
)
def test_a_checkpoint_of_another_call_is_refused(tmp_path, arguments, message):
    quietly(merged(), batches(2), OBJECTIVES, epochs=2, checkpoint=tmp_path / "c")
    given = {"network": merged(), "epochs": 2, **arguments}
    with pytest.raises(PamergeError, match=rf"belongs to another call \({message}\)\. Delete it, or give another path"):
        quietly(given.pop("network"), batches(2), OBJECTIVES, checkpoint=tmp_path / "c", **given)


def test_a_run_that_diverged_leaves_no_checkpoint_to_go_on_from(tmp_path):
    data = batches(3)
    data[2] = (torch.full_like(data[2][0], float("inf")), data[2][1])
    network = merged()
    with pytest.raises(DivergenceError):
        quietly(network, data, OBJECTIVES, epochs=1, checkpoint=tmp_path / "c")
    assert not (tmp_path / "c").exists()
    assert log_of(tmp_path / "c")[-1]["event"] == "diverged"
    quietly(network, batches(3), OBJECTIVES, epochs=1, lr=1e-4, checkpoint=tmp_path / "c")


def test_the_log_tells_steps_records_and_the_end(tmp_path):
    quietly(merged(), batches(3), OBJECTIVES, epochs=2, validation=batches(1), checkpoint=tmp_path / "c")
    lines = log_of(tmp_path / "c")
    assert [line["event"] for line in lines] == [
        "start",
        "record",
        *["step"] * 3,
        "record",
        *["step"] * 3,
        "record",
        "end",
    ]
    assert set(lines[2]["losses"]) == set(lines[5]["metrics"]) == set(OBJECTIVES)
    assert lines[0]["total"] == lines[-1]["steps"] == 6
