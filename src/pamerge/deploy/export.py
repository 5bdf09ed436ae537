"""A bundle: one weights file, a small ONNX graph for each subset of tasks, and a manifest."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pamerge_runtime.manifest import checksum

from pamerge.deploy.fold import Folded, fold
from pamerge.deploy.graph import WEIGHTS
from pamerge.deploy.lower import Fuse, lower
from pamerge.deploy.weights import store
from pamerge.deploy.write import INPUT, NUMBER_TYPES, write_graph
from pamerge.errors import PamergeError
from pamerge.network import MultitaskNetwork
from pamerge.tasks import TaskSet, all_subsets, resolve_tasks

FORMAT = "pamerge-bundle"
VERSION = 1
MANIFEST = "manifest.json"
MOST_TASKS = 5  # with more, the number of subsets gets out of hand: the user names those that are needed
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_+-]{0,99}")


@dataclass(frozen=True)
class Bundle:
    """An exported folder: its subsets, and the bytes of its weights and of all its files."""

    folder: Path
    subsets: tuple[TaskSet, ...]
    weight_bytes: int
    total_bytes: int


def export_onnx(
    network: MultitaskNetwork,
    folder: str | os.PathLike[str],
    subsets: Literal["all"] | Iterable[Iterable[str] | str] = "all",
    *,
    fuse: Fuse = "auto",
    overwrite: bool = False,
) -> Bundle:
    """Write a network as a folder that ``pamerge_runtime.Runtime`` and any ONNX runtime can run.

    Args:
        network: in float32; it is exported as it is in eval mode.
        folder: appears whole or not at all.
        subsets: the subsets of tasks to write a graph for, each as task names or as ``"age+gender"``; all of them
            by default, which works for up to five tasks.
        fuse: whether blocks of a layer are computed as one dense layer with zero blocks: where that should be
            faster (``"auto"``), ``"never"``, or wherever it can be done (``"always"``). The file has the same weights.
        overwrite: whether an older bundle of this name is replaced.
    """
    target, chosen = Path(folder), _subsets(network, subsets)
    if fuse not in ("auto", "never", "always"):
        raise PamergeError(f"fuse={fuse!r} is not known; expected 'auto', 'never' or 'always'.")
    _check(network, target, overwrite)
    everything = network._program(TaskSet(network.tasks))
    compiled = network._compiled[False]
    folded = fold(compiled, dict(network.blocks.items()))
    needed = {key: layer for key, layer in folded.layers.items() if key in _touched(network, folded, chosen)}
    weights, places = store(needed)
    outputs = _outputs(network)
    files, entries = {WEIGHTS: weights}, {}
    for number, tasks in enumerate(chosen):
        lowered = lower(network.structure, folded, everything.outputs, tasks, fuse)
        graph, touched = write_graph(lowered, folded.layers, places, outputs)
        name = _file_name(tasks, number, files)
        files[name] = graph
        entries[str(tasks)] = {**_entry(name, graph), "flops": network.flops(tasks), "weight_bytes": touched}
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "tasks": list(network.tasks),
        "input": {"name": INPUT, "type": "float32", "shape": ["batch", *network.input_size]},
        "outputs": {task: {"type": kind, "shape": ["batch", *shape]} for task, (shape, kind) in outputs.items()},
        "weights": _entry(WEIGHTS, weights),
        "subsets": entries,
    }
    manifest["sha256"] = checksum(manifest)
    files[MANIFEST] = (json.dumps(manifest, indent=1, ensure_ascii=False) + "\n").encode()
    _write_folder(target, files, overwrite)
    return Bundle(target, chosen, sum(place.own_bytes for place in places.values()), sum(map(len, files.values())))


def _subsets(network: MultitaskNetwork, subsets: Any) -> tuple[TaskSet, ...]:
    if subsets != "all":
        if isinstance(subsets, str):
            raise PamergeError(
                f'subsets={subsets!r} is not known; expected "all" or a list such as ["age", "age+sex"].'
            )
        asked = (TaskSet.parse(item) if isinstance(item, str) else item for item in subsets)
        found = tuple(dict.fromkeys(resolve_tasks(item, network.tasks) for item in asked))
        if not found:
            raise PamergeError("No subsets of tasks were asked for; name at least one.")
        return found
    if len(network.tasks) > MOST_TASKS:
        count = 2 ** len(network.tasks) - 1
        raise PamergeError(
            f"{len(network.tasks)} tasks have {count} subsets. Name the ones that you need: subsets=[...]."
        )
    return tuple(all_subsets(network.tasks))


def _check(network: MultitaskNetwork, target: Path, overwrite: bool) -> None:
    types = {p.dtype for p in [*network.parameters(), *network.buffers()] if p.is_floating_point()}
    if types - {torch.float32}:
        listed = ", ".join(sorted(map(str, types)))
        raise PamergeError(f"The network has tensors of {listed}; call network.float() before exporting it.")
    if INPUT in network.tasks:
        raise PamergeError(f"A task is called {INPUT!r}, which is the name of a bundle's input; rename the task.")
    if not target.parent.is_dir():
        raise PamergeError(f"Cannot write {target}: the folder {target.parent} does not exist.")
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise PamergeError(f"Cannot write {target}: it exists and is no folder.")
    if target.is_dir() and any(target.iterdir()):
        if not overwrite:
            raise PamergeError(f"{target} is not empty. Choose another folder, or pass overwrite=True.")
        if not (target / MANIFEST).is_file():
            raise PamergeError(f"{target} is no bundle, so it is not overwritten. Choose another folder.")


def _touched(network: MultitaskNetwork, folded: Folded, subsets: Iterable[TaskSet]) -> set[str]:
    masks = [network.structure.mask(tasks) for tasks in subsets]
    return {step.block for step in folded.steps if step.block and any(step.need & mask for mask in masks)}


@torch.no_grad()
def _outputs(network: MultitaskNetwork) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape without the batch, and type, of each task's output."""
    device = next((p.device for p in network.parameters()), torch.device("cpu"))
    was_training = network.training
    network.eval()
    results = network(torch.zeros(2, *network.input_size, device=device))
    network.train(was_training)
    found = {task: (tuple(r.shape[1:]), str(r.dtype).removeprefix("torch.")) for task, r in results.items()}
    for task, (_, kind) in found.items():
        if kind not in NUMBER_TYPES:
            raise PamergeError(f"The output of task {task!r} has type {kind}, which a bundle cannot hold.")
    return found


def _file_name(tasks: TaskSet, number: int, taken: Iterable[str]) -> str:
    """Readable where the tasks' names allow it; no two names differ in case only, since some systems ignore it."""
    plain = f"{tasks}.onnx"
    lower_case = {name.lower() for name in taken}
    return plain if _PLAIN.fullmatch(str(tasks)) and plain.lower() not in lower_case else f"subset-{number}.onnx"


def _entry(name: str, content: bytes) -> dict[str, Any]:
    return {"file": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _write_folder(target: Path, files: dict[str, bytes], overwrite: bool) -> None:
    """Write beside the target, then rename."""
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        for name, content in files.items():
            with open(temporary / name, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        temporary.chmod(0o755)
        if overwrite and target.is_dir() and any(target.iterdir()):
            old = temporary.with_name(f"{temporary.name}.old")
            os.rename(target, old)
            os.rename(temporary, target)
            shutil.rmtree(old)
        else:
            os.rename(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
