"""Checkpoints: one file of tensors and JSON, written to a temporary name and renamed; nothing in it is executed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor
from torch.optim import Optimizer

from pamerge.errors import FileFormatError, PamergeError

FORMAT = "pamerge-checkpoint"
VERSION = 1


def save_state(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Write tensors and JSON to one file, which appears whole or not at all and replaces the one before it."""
    path = Path(path)
    if not path.parent.is_dir():
        raise PamergeError(f"Cannot write the checkpoint {path}: the folder {path.parent} does not exist.")
    header = {"format": FORMAT, "version": str(VERSION), "meta": json.dumps(meta, separators=(",", ":"))}
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # not with save_file, which writes to a temporary name of its own that a killed run would leave behind
        content = to_bytes({name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}, header)
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load_state(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The tensors and JSON of a checkpoint; None if there is no file.

    Raises:
        FileFormatError: It is damaged, or no checkpoint, or one of a newer version.
    """
    path = Path(path)
    remove_leftovers(path)
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if header.get("format") != FORMAT:
            raise FileFormatError(f"{path} is a safetensors file, but no checkpoint of pamerge's.")
        if not header.get("version", "").isdigit() or int(header["version"]) > VERSION:
            raise FileFormatError(
                f"The checkpoint {path} has format version {header.get('version')}; this pamerge reads up to {VERSION}."
            )
        return tensors, json.loads(header["meta"])
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise FileFormatError(
            f"The checkpoint {path} is damaged ({error}); delete it to start from the beginning."
        ) from error


def remove_leftovers(path: Path) -> None:
    """Delete what a run that was killed while it wrote left behind, but not what another one is writing."""
    for leftover in path.parent.glob(f".{path.name}.*.tmp"):
        writer = leftover.name.removesuffix(".tmp").rpartition(".")[2]
        if not (writer.isdigit() and int(writer) != os.getpid() and _is_running(int(writer))):
            leftover.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under names that begin with a prefix."""
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that :func:`prefixed` named."""
    return {
        name.removeprefix(f"{prefix}/"): tensor for name, tensor in tensors.items() if name.startswith(f"{prefix}/")
    }


def optimizer_state_to_tensors(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimiser's state as tensors, named ``<number of the parameter>.<entry>``, and JSON."""
    state = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for index, entries in state["state"].items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{name}"] = value
            else:
                numbers[f"{index}.{name}"] = value
    groups = [
        {k: v.tolist() if isinstance(v, Tensor) else v for k, v in group.items()} for group in state["param_groups"]
    ]
    return tensors, {"numbers": numbers, "groups": groups}


def restore_optimizer_state(optimizer: Optimizer, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Give an optimiser of the same parameters the state that :func:`optimizer_state_to_tensors` took."""
    state: dict[int, dict[str, Any]] = {}
    for key, value in [*tensors.items(), *meta["numbers"].items()]:
        index, _, name = key.partition(".")
        # cloned, because step counters stay the tensors that they are given
        state.setdefault(int(index), {})[name] = value.clone() if isinstance(value, Tensor) else value
    groups = [
        {name: tuple(value) if isinstance(value, list) and name != "params" else value for name, value in group.items()}
        for group in meta["groups"]
    ]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """A short digest of the names, shapes and values of tensors."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().contiguous().cpu()
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()[:32]
