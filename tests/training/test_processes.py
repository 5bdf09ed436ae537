from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from lightning_fabric import Fabric
from safetensors.torch import load_file
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, RandomSampler
from training import two_processes
from training.small import OBJECTIVES, Labelled, batches, loader, merged

from pamerge import PamergeError
from pamerge.training import evaluate, finetune
from pamerge.training.processes import resolve_fabric, shard, start_epoch


@pytest.mark.slow
def test_two_processes_train_like_one_with_the_combined_batch(tmp_path):
    folders = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "OMP_NUM_THREADS": "1"}
    folder = tmp_path / "two"
    folder.mkdir()
    command = [sys.executable, two_processes.__file__, "2", str(folder)]
    subprocess.run(command, env=environment, check=True, timeout=300)
    (tmp_path / "one").mkdir()
    two_processes.run(Fabric(accelerator="cpu", devices=1), tmp_path / "one")
    one, two = (json.loads((tmp_path / name / "found.json").read_text()) for name in ("one", "two"))
    for name in ("labels", "teachers"):
        expected, found = (load_file(tmp_path / where / f"{name}.weights") for where in ("one", "two"))
        for key, tensor in expected.items():
            torch.testing.assert_close(found[key], tensor, rtol=1e-5, atol=1e-5)
        assert two[name]["steps"] == one[name]["steps"]
        assert two[name]["task_batches"] == one[name]["task_batches"]
        for metrics in ("metrics", "evaluated"):
            assert two[name][metrics] == pytest.approx(one[name][metrics], abs=1e-4)
    first, second = (load_file(folder / f"shuffled.{rank}") for rank in range(2))
    assert all(torch.equal(tensor, second[key]) for key, tensor in first.items())
    samples = [json.loads((folder / f"samples.{rank}").read_text()) for rank in range(2)]
    assert sorted(samples[0] + samples[1]) == list(range(two_processes.SAMPLES))
    assert samples[0] != sorted(samples[0])


def rank(number: int, of: int = 2) -> SimpleNamespace:
    return SimpleNamespace(global_rank=number, world_size=of)


@pytest.mark.parametrize("processes", [2, 3])
def test_processes_share_the_batches_of_a_loader_without_repeating_any(processes):
    data = Labelled(28)
    order = BatchSampler(RandomSampler(data, generator=torch.Generator().manual_seed(1)), 4, drop_last=False)
    for make in (
        lambda: loader(28, 4),
        lambda: loader(28, 4, shuffle=3),
        lambda: DataLoader(data, batch_sampler=order),
        lambda: DataLoader(data, sampler=list(range(28)), batch_size=None),
    ):
        torch.manual_seed(0)
        order.sampler.generator.manual_seed(1)
        whole = [x for x, _ in make()]
        parts = []
        for number in range(processes):
            order.sampler.generator.manual_seed(1)
            part = shard(make(), rank(number, processes))
            parts.append([x for x, _ in part])
            assert len(part) == len(parts[-1])
        together = [x for group in zip_longest_flat(parts) for x in group]
        assert len(together) == len(whole)
        assert all(torch.equal(x, y) for x, y in zip(together, whole, strict=True))


def zip_longest_flat(parts: list[list[torch.Tensor]]) -> list[list[torch.Tensor]]:
    return [[part[i] for part in parts if i < len(part)] for i in range(max(map(len, parts)))]


def test_a_loader_of_another_class_is_read_whole_and_used_in_part():
    class Augmenting(DataLoader):
        def __iter__(self):
            for x, y in super().__iter__():
                yield x + 1, y

    parts = [shard(Augmenting(Labelled(12), 4), rank(number)) for number in range(2)]
    assert [len(part) for part in parts] == [len(list(part)) for part in parts] == [2, 1]
    assert torch.equal(next(iter(parts[1]))[0], Labelled(12).x[4:8] + 1)


def test_data_that_is_divided_already_or_cannot_be_is_taken_as_it_is():
    class Stream(IterableDataset):
        def __iter__(self):
            yield from batches(1)

    data = Labelled(8)
    for given in (
        batches(2),
        DataLoader(Stream(), batch_size=None),
        DataLoader(data, sampler=DistributedSampler(data, 2, 0)),
        Fabric(accelerator="cpu", devices=1).setup_dataloaders(DataLoader(data)),
    ):
        assert shard(given, rank(0)) is given
    assert shard(given := loader(8), rank(0, 1)) is given


def test_samplers_that_shuffle_by_epoch_are_told_the_epoch():
    data = Labelled(8)
    sampler = DistributedSampler(data, 2, 0)
    start_epoch(DataLoader(data, sampler=sampler), 3)
    assert sampler.epoch == 3
    wrapped = Fabric(accelerator="cpu", devices=1).setup_dataloaders(DataLoader(data, sampler=sampler))
    start_epoch(wrapped, 5)
    list(chain(wrapped))
    assert sampler.epoch == 5


def test_mixed_precision_trains_full_precision_weights():
    network, data = merged(), batches(6)
    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    seen = set()
    next(iter(network.blocks.values())).register_forward_hook(lambda module, args, output: seen.add(output.dtype))
    before = evaluate(network, data, OBJECTIVES)
    finetune(network, data, OBJECTIVES, epochs=5, lr=1e-2, fabric=fabric, progress=False)
    assert torch.bfloat16 in seen
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}
    assert evaluate(network, data, OBJECTIVES)["shape"] > before["shape"]


def test_a_fabric_that_cannot_work_is_refused():
    network = merged()
    with pytest.raises(PamergeError, match=r"fabric has precision 'bf16-true'; expected '32-true', '16-mixed' or"):
        resolve_fabric(Fabric(accelerator="cpu", devices=1, precision="bf16-true"), network)
    with pytest.raises(
        PamergeError, match=r"fabric has 2 processes that were not started; call fabric.launch\(\) first"
    ):
        resolve_fabric(Fabric(accelerator="cpu", devices=2, strategy="ddp"), network)
