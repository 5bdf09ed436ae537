"""Saving and loading: one safetensors file with the weights and, in its header, a JSON description of the network.

Nothing in a file is executed. Loading needs none of the user's classes: operations are looked up in the op table
by name.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from pamerge.errors import FileFormatError, PamergeError
from pamerge.graph.layer_graph import Channels, Node
from pamerge.graph.ops import resolve_op
from pamerge.network.blocks import BLOCK_OPS, FUNCTION_OPS
from pamerge.network.network import MultitaskNetwork
from pamerge.network.structure import Structure, groups_of, tighten
from pamerge.tasks import TaskSet, check_task_names

FORMAT = "pamerge"
VERSION = 1
_KINDS = {"input", "weighted", "channelwise", "keeps", "join", "wire", "whole"}


def save(network: MultitaskNetwork, path: str | os.PathLike[str]) -> None:
    """Save a network; the file appears whole or not at all."""
    description = json.dumps(describe(network.structure), separators=(",", ":"))
    tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in network.blocks.state_dict().items()}
    header = {"format": FORMAT, "version": str(VERSION), "description": description}
    header["sha256"] = _digest(description, tensors)
    write_atomically(Path(path), to_bytes(tensors, metadata=header))


def load(path: str | os.PathLike[str]) -> MultitaskNetwork:
    """Load a network that :func:`save` wrote.

    Raises:
        FileFormatError: the file is truncated, changed, of another kind, or of a newer version.
    """
    header, tensors = _read(Path(path))
    if header.get("format") != FORMAT:
        raise FileFormatError(f"{path} is a safetensors file, but not one of pamerge's.")
    if not header.get("version", "").isdigit() or int(header["version"]) > VERSION:
        raise FileFormatError(
            f"{path} has format version {header.get('version')}; this pamerge reads up to {VERSION}. "
            "Update pamerge to load it."
        )
    if header.get("sha256") != _digest(header.get("description", ""), tensors):
        raise FileFormatError(f"{path} is damaged or was changed: its checksum does not match its content.")
    try:
        structure = from_description(json.loads(header["description"]))
        blocks: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            key, _, tensor_name = name.rpartition(".")
            blocks.setdefault(key, {})[tensor_name] = tensor
        network = MultitaskNetwork(structure, blocks)
        network.check()
    except PamergeError as error:
        raise FileFormatError(f"{path} cannot be loaded: {error}") from error
    except (
        KeyError,
        IndexError,
        TypeError,
        ValueError,
        AttributeError,
        RuntimeError,
        StopIteration,
    ) as error:
        raise FileFormatError(f"{path} has an inconsistent description ({type(error).__name__}: {error}).") from error
    return network


def write_atomically(path: Path, content: bytes) -> None:
    """Write to a temporary name beside the target, then rename."""
    if not path.parent.is_dir():
        raise PamergeError(f"Cannot write {path}: the folder {path.parent} does not exist.")
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    if not path.is_file():
        raise FileFormatError(f"There is no file {path}.")
    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise FileFormatError(f"{path} is truncated or not a safetensors file ({error}).") from error


def _digest(description: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(description.encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.view(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()


# -- the description ---------------------------------------------------------------------------------------------------


def describe(structure: Structure) -> dict[str, Any]:
    """A structure as plain JSON of its own; source lines stay behind, since they name folders of a machine."""
    return {
        "tasks": list(structure.tasks),
        "outputs": dict(structure.outputs),
        "origins": _runs_of_masks(structure, np.arange(len(structure.origins)), structure.origins),
        "nodes": [
            {
                "name": node.name,
                "kind": node.kind,
                "op": node.op,
                "inputs": list(node.inputs),
                "channels": _runs(node.channels),
                "width": node.width,
                "space": list(node.space),
                "settings": copy.deepcopy(dict(node.settings)),
                "path": node.path,
            }
            for node in structure.nodes.values()
        ],
        "task_sets": {
            name: _runs_of_masks(structure, structure.nodes[name].channels, masks)
            for name, masks in structure.task_sets.items()
        },
    }


def from_description(description: Mapping[str, Any]) -> Structure:
    """The structure that :func:`describe` wrote; anything unexpected is an error."""
    tasks = check_task_names(description["tasks"])
    nodes: dict[str, Node] = {}
    for item in description["nodes"]:
        node = Node(
            name=item["name"],
            kind=item["kind"],
            op=item["op"],
            inputs=tuple(item["inputs"]),
            channels=_from_runs(item["channels"]),
            width=int(item["width"]),
            space=tuple(int(size) for size in item["space"]),
            settings=item["settings"],
            path=item["path"],
        )
        _check_node(node, nodes)
        nodes[node.name] = node
    empty = Structure(tasks, nodes, description["outputs"], np.empty(0, dtype=np.int64), {})
    count = 1 + max(int(node.channels.max(initial=-1)) for node in nodes.values())
    origins = _masks_of_runs(empty, np.arange(count), description["origins"])
    task_sets = {
        name: _masks_of_runs(empty, nodes[name].channels, runs) for name, runs in description["task_sets"].items()
    }
    if set(description["outputs"]) != set(tasks) or not set(description["outputs"].values()) <= set(nodes):
        raise FileFormatError("its outputs do not fit its tasks")
    structure = Structure(tasks, nodes, description["outputs"], origins, task_sets)
    return tighten(structure)[0]


def _check_node(node: Node, known: Mapping[str, Node]) -> None:
    if node.kind not in _KINDS or node.name in known or (node.kind == "input") != (not known):
        raise FileFormatError(f"node {node.name!r} is out of place")
    if not set(node.inputs) <= set(known):
        raise FileFormatError(f"node {node.name!r} reads a tensor that does not exist")
    has_block = node.kind in ("weighted", "channelwise")
    if has_block != (node.op in BLOCK_OPS):
        raise FileFormatError(f"node {node.name!r} cannot be of kind {node.kind}")
    if node.kind in ("keeps", "join", "whole") and node.op not in FUNCTION_OPS:
        resolve_op(node.op)


def _runs(numbers: Channels) -> list[list[int]]:
    """[3, 4, 5, 9] → [[3, 3], [9, 1]]: start and length of each run."""
    starts = np.flatnonzero(np.diff(numbers, prepend=-2) != 1)
    lengths = np.diff(np.append(starts, len(numbers)))
    return [[int(numbers[start]), int(length)] for start, length in zip(starts, lengths, strict=True)]


def _from_runs(runs: list[list[int]]) -> Channels:
    parts = [np.arange(start, start + length) for start, length in runs]
    return np.concatenate([np.empty(0, dtype=np.int64), *parts])


def _runs_of_masks(structure: Structure, channels: Channels, masks: Channels) -> dict[str, list[list[int]]]:
    return {str(structure.task_set(group)): _runs(channels[masks == group]) for group in groups_of(masks)}


def _masks_of_runs(structure: Structure, channels: Channels, runs: Mapping[str, list[list[int]]]) -> Channels:
    masks = np.zeros(len(channels), dtype=np.int64)
    for tasks, numbers in runs.items():
        masks[np.isin(channels, _from_runs(numbers))] = structure.mask(TaskSet.parse(tasks))
    return masks
