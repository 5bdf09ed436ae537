"""The random states that a run depends on, as tensors and plain JSON, so that a killed run can go on where it was."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_WHERE_GENERATORS_HIDE = ("generator", "sampler", "batch_sampler", "dataset")


@dataclass(frozen=True)
class RandomState:
    """States of torch (one row for each process; CPU and the current GPU), numpy and python, and of generators.

    Attributes:
        tensors: The states that are bytes.
        numbers: The others, as plain JSON.
    """

    tensors: Mapping[str, Tensor]
    numbers: Mapping[str, Any]


def capture_random_state(*loaders: Any, fabric: Fabric | None = None) -> RandomState:
    """The states of the global generators, and of the generators that loaders (or their samplers and data sets) hold.

    Under several processes all of them must call this; torch's state is taken from each, everything else from the
    first.
    """
    tensors = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors["cuda"] = torch.cuda.get_rng_state()
    if fabric is not None and fabric.world_size > 1:
        tensors = {name: fabric.all_gather(state).cpu() for name, state in tensors.items()}  # type: ignore[union-attr]
    else:
        tensors = {name: state.unsqueeze(0) for name, state in tensors.items()}
    for index, generator in enumerate(generators_of(*loaders)):
        tensors[f"generator.{index}"] = generator.get_state().cpu()
    legacy = np.random.get_state(legacy=False)
    assert isinstance(legacy, dict)
    legacy = {**legacy, "state": {**legacy["state"], "key": legacy["state"]["key"].tolist()}}
    return RandomState(tensors, {"python": random.getstate(), "numpy": legacy})


def restore_random_state(state: RandomState, *loaders: Any, fabric: Fabric | None = None) -> None:
    """Put back what :func:`capture_random_state` took from the same loaders; without loaders, the global states."""
    row = fabric.global_rank if fabric is not None else 0
    torch.set_rng_state(_row(state.tensors["torch"], row))
    if "cuda" in state.tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(_row(state.tensors["cuda"], row))
    for index, generator in enumerate(generators_of(*loaders)):
        if f"generator.{index}" in state.tensors:
            generator.set_state(state.tensors[f"generator.{index}"])
    version, internal, gauss = state.numbers["python"]
    random.setstate((version, tuple(internal), gauss))
    legacy = state.numbers["numpy"]
    key = np.asarray(legacy["state"]["key"], dtype=np.uint32)
    np.random.set_state({**legacy, "state": {**legacy["state"], "key": key}})


def share_random_state(*loaders: Any, fabric: Fabric) -> None:
    """Give all processes the first one's states: they must shuffle alike, since each takes its share of one order."""
    if fabric.world_size > 1:
        restore_random_state(fabric.broadcast(capture_random_state(*loaders)), *loaders)


def part_random_state(fabric: Fabric) -> None:
    """Give each process a state of its own, once the order of the data is drawn: dropout must not be alike."""
    if fabric.world_size > 1:
        seed = int(torch.randint(2**62, ()))
        if fabric.global_rank:
            torch.manual_seed(seed + fabric.global_rank)


@contextmanager
def unchanged_random_state(*loaders: Any) -> Iterator[None]:
    """Whatever happens inside leaves no trace in the random states."""
    state = capture_random_state(*loaders)
    try:
        yield
    finally:
        restore_random_state(state, *loaders)


def seed_everything(seed: int) -> None:
    """Seed the global generators, which dropout and loaders without a generator of their own draw from."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def generators_of(*loaders: Any) -> list[torch.Generator]:
    """The generators that loaders, their samplers and their data sets hold, each once, in a fixed order."""
    found: dict[int, torch.Generator] = {}
    visited: set[int] = set()

    def visit(owners: Iterable[Any]) -> None:
        for owner in owners:
            if owner is None or id(owner) in visited:
                continue
            visited.add(id(owner))
            if isinstance(owner, torch.Generator):
                found[id(owner)] = owner
            else:
                visit(getattr(owner, name, None) for name in _WHERE_GENERATORS_HIDE)

    visit(loaders)
    return list(found.values())


def _row(states: Tensor, row: int) -> Tensor:
    return states[min(row, len(states) - 1)]
