from __future__ import annotations

import pickletools
import random
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler
from training.small import Labelled

from pamerge import FileFormatError, PamergeError
from pamerge.training.checkpoint import (
    fingerprint,
    load_state,
    optimizer_state_to_tensors,
    restore_optimizer_state,
    save_state,
)
from pamerge.training.random_state import (
    RandomState,
    capture_random_state,
    generators_of,
    restore_random_state,
    seed_everything,
)


def test_a_state_comes_back_as_it_was(tmp_path):
    tensors = {"a": torch.randn(3, 2), "b/c": torch.tensor(4), "empty": torch.zeros(0, 3), "bits": torch.ones(2).bool()}
    meta = {"step": 3, "score": 0.1 + 0.2, "names": ["é", None]}
    save_state(tmp_path / "run.ckpt", tensors, meta)
    found, again = load_state(tmp_path / "run.ckpt")
    assert again == meta
    assert set(found) == set(tensors)
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    assert [path.name for path in tmp_path.iterdir()] == ["run.ckpt"]


def test_no_file_is_no_state(tmp_path):
    assert load_state(tmp_path / "run.ckpt") is None


def test_a_checkpoint_is_no_pickle(tmp_path):
    save_state(tmp_path / "run.ckpt", {"a": torch.ones(2)}, {})
    with pytest.raises(ValueError, match=r"opcode|pickle"):
        list(pickletools.genops((tmp_path / "run.ckpt").read_bytes()))


def test_what_a_killed_writer_left_behind_is_cleaned_up(tmp_path):
    (tmp_path / ".run.ckpt.123.tmp").write_bytes(b"half of it")
    (tmp_path / ".other.ckpt.123.tmp").write_bytes(b"not ours")
    save_state(tmp_path / "run.ckpt", {"a": torch.ones(2)}, {})
    load_state(tmp_path / "run.ckpt")
    assert {path.name for path in tmp_path.iterdir()} == {"run.ckpt", ".other.ckpt.123.tmp"}


def test_a_failed_write_leaves_the_old_checkpoint(tmp_path):
    save_state(tmp_path / "run.ckpt", {"a": torch.ones(2)}, {"step": 1})
    with pytest.raises(TypeError):
        save_state(tmp_path / "run.ckpt", {"a": torch.ones(2)}, {"step": object()})
    assert load_state(tmp_path / "run.ckpt")[1] == {"step": 1}


def test_damaged_and_foreign_files_are_refused(tmp_path):
    path = tmp_path / "run.ckpt"
    save_state(path, {"a": torch.ones(200)}, {})
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(FileFormatError, match=r"run.ckpt is damaged .*; delete it to start from the beginning"):
        load_state(path)
    save_file({"a": torch.ones(2)}, path)
    with pytest.raises(FileFormatError, match="is a safetensors file, but no checkpoint"):
        load_state(path)
    save_file({"a": torch.ones(2)}, path, {"format": "pamerge-checkpoint", "version": "99", "meta": "{}"})
    with pytest.raises(FileFormatError, match="has format version 99; this pamerge reads up to 1"):
        load_state(path)
    with pytest.raises(PamergeError, match=r"the folder .* does not exist"):
        save_state(tmp_path / "nowhere" / "run.ckpt", {}, {})


@pytest.mark.parametrize(
    "make", [torch.optim.Adam, partial(torch.optim.SGD, momentum=0.9), partial(torch.optim.AdamW, amsgrad=True)]
)
def test_an_optimiser_goes_on_with_its_state_from_a_file(tmp_path, make):
    def run(net, optimizer, steps):
        for step in range(steps):
            optimizer.zero_grad()
            net(torch.full((2, 3), 1.0 + step)).square().sum().backward()
            optimizer.step()

    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    optimizer = make(net.parameters(), lr=0.01)
    run(net, optimizer, 3)
    tensors, meta = optimizer_state_to_tensors(optimizer)
    save_state(tmp_path / "o", tensors, meta)
    copy = nn.Linear(3, 2)
    copy.load_state_dict(net.state_dict())
    other = make(copy.parameters(), lr=0.5)
    restore_optimizer_state(other, *load_state(tmp_path / "o"))
    assert other.param_groups[0]["lr"] == 0.01
    run(net, optimizer, 2)
    run(copy, other, 2)
    assert torch.equal(net.weight, copy.weight)


def draw(*generators):
    return [torch.rand(2).tolist(), np.random.rand(2).tolist(), np.random.randn(), random.random()] + [
        torch.rand(2, generator=generator).tolist() for generator in generators
    ]


def test_all_random_states_survive_json(tmp_path):
    seed_everything(3)
    np.random.randn()  # leaves half of a pair behind
    loader = DataLoader(Labelled(8), shuffle=True, generator=torch.Generator().manual_seed(4))
    state = capture_random_state(loader)
    save_state(tmp_path / "r", state.tensors, state.numbers)
    expected = draw(loader.generator)
    draw(loader.generator)
    restore_random_state(RandomState(*load_state(tmp_path / "r")), loader)
    assert draw(loader.generator) == expected


def test_generators_are_found_wherever_loaders_keep_them():
    generator = torch.Generator()
    data = Labelled(8)
    order = RandomSampler(data, generator=generator)
    assert generators_of(DataLoader(data, batch_sampler=BatchSampler(order, 2, False))) == [generator]
    assert generators_of(DataLoader(data, sampler=BatchSampler(order, 2, False), batch_size=None)) == [generator]
    data.generator = generator
    assert generators_of(DataLoader(data), [1, 2], None) == [generator]
    assert generators_of([1, 2]) == []


def test_a_fingerprint_sees_values_names_and_shapes():
    base = {"a": torch.zeros(4)}
    others = [{"a": torch.tensor([0, 0, 0, 1e-30])}, {"b": torch.zeros(4)}, {"a": torch.zeros(2, 2)}]
    assert fingerprint(base) == fingerprint({"a": torch.zeros(4)})
    assert len({fingerprint(t) for t in [base, *others]}) == 4


def test_what_a_killed_run_was_writing_is_deleted_but_not_what_another_one_is_writing(tmp_path):
    path = tmp_path / "run.checkpoint"
    save_state(path, {"x": torch.zeros(1)}, {})
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        written = tmp_path / f".run.checkpoint.{other.pid}.tmp"
        written.touch()
        load_state(path)
        assert written.exists()
        other.communicate(b"\n")
    load_state(path)
    assert not written.exists()
