"""The manifest of a bundle: read with suspicion, since it may come from anywhere.

Nothing is opened before its name and its size are checked: a name is a plain file name, the file is no link, and its
size is the declared one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pamerge_runtime.errors import BundleError

FORMAT = "pamerge-bundle"
VERSION = 1
MANIFEST = "manifest.json"
LARGEST_MANIFEST = 16 * 2**20
LARGEST_GRAPH = 64 * 2**20
LARGEST_WEIGHTS = 2**40
TYPES = ("float32", "int64", "bool")
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_+-]{0,120}\.(onnx|safetensors)")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class File:
    """A file of the bundle, with its size and checksum."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Output:
    """The output of a task: its type, and its shape without the batch."""

    type: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Subset:
    """A subset of tasks: its graph, the operations of one inference, and the bytes of weights that it reads."""

    tasks: frozenset[str]
    graph: File
    flops: int
    weight_bytes: int


@dataclass(frozen=True)
class Manifest:
    """What a bundle holds."""

    tasks: tuple[str, ...]
    input_name: str
    input_shape: tuple[int, ...]
    outputs: Mapping[str, Output]
    weights: File
    subsets: Mapping[frozenset[str], Subset]


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a bundle, with every claim about names and numbers checked."""
    if not folder.is_dir():
        raise BundleError(f"There is no bundle at {folder}: it is no folder.")
    size = _size(folder, MANIFEST)
    if size > LARGEST_MANIFEST:
        raise BundleError(f"{MANIFEST} has {size:,} bytes; a manifest has at most {LARGEST_MANIFEST:,}.")
    try:
        return parse_manifest(json.loads(read_exactly(folder, MANIFEST, size)))
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{MANIFEST} is no JSON ({error}).") from error


def checksum(content: Mapping[str, Any]) -> str:
    """The sha256 of a manifest without its entry ``sha256``, as JSON without spaces and with sorted keys."""
    rest = {key: value for key, value in content.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def parse_manifest(content: Any) -> Manifest:
    """A manifest from its JSON."""
    _expect(isinstance(content, dict) and content.get("format") == FORMAT, f"it is no manifest of a {FORMAT}")
    version = content.get("version")
    _expect(type(version) is int and version >= 1, f"its version {version!r:.40} is no version")
    if version > VERSION:
        raise BundleError(f"The bundle has format version {version}; this runtime reads up to {VERSION}. Update it.")
    if "sha256" not in content:
        raise BundleError(f"{MANIFEST} has no checksum: an older pamerge wrote the bundle. Export the network again.")
    if content["sha256"] != checksum(content):
        raise BundleError(
            f"{MANIFEST} is damaged or was changed: its checksum is not its own. Export the network again."
        )
    tasks = content.get("tasks")
    _expect(_is_list_of(tasks, str) and 0 < len(tasks) == len(set(tasks)) and "" not in tasks, "its tasks are no names")
    given = _dict(content, "input")
    _expect(isinstance(given.get("name"), str) and given.get("type") == "float32", "its input is not described")
    outputs = {}
    for task, item in _dict(content, "outputs").items():
        _expect(isinstance(item, dict) and item.get("type") in TYPES, f"the output of {task!r:.40} is not described")
        outputs[task] = Output(item["type"], _shape(item))
    _expect(set(outputs) == set(tasks), "its outputs do not fit its tasks")
    subsets: dict[frozenset[str], Subset] = {}
    for name, item in _dict(content, "subsets").items():
        subset = frozenset(name.split("+"))
        _expect(subset <= set(tasks) and subset not in subsets, f"{name!r:.80} is no subset of its tasks")
        _expect(isinstance(item, dict), f"the subset {name!r:.80} is not described")
        graph = _file(item, ".onnx", LARGEST_GRAPH)
        subsets[subset] = Subset(subset, graph, _count(item, "flops"), _count(item, "weight_bytes"))
    _expect(bool(subsets), "it has no subsets")
    names = [subset.graph.name.lower() for subset in subsets.values()]
    _expect(len(set(names)) == len(names), "two subsets share a file")
    weights = _file(_dict(content, "weights"), ".safetensors", LARGEST_WEIGHTS)
    return Manifest(tuple(tasks), given["name"], _shape(given), outputs, weights, subsets)


def check_file(folder: Path, file: File) -> None:
    """Raise unless a file is there, is no link, and has the declared size and checksum."""
    size = _size(folder, file.name)
    if size != file.bytes:
        raise BundleError(f"{file.name} has {size:,} bytes; the manifest says {file.bytes:,}. The bundle is damaged.")
    digest = hashlib.sha256()
    with open_file(folder, file.name) as stream:
        while chunk := stream.read(2**20):
            digest.update(chunk)
    if digest.hexdigest() != file.sha256:
        raise BundleError(f"{file.name} is damaged or was changed: its checksum is not the one in the manifest.")


def read_exactly(folder: Path, name: str, size: int) -> bytes:
    """The content of a file of known size."""
    with open_file(folder, name) as stream:
        content: bytes = stream.read(size + 1)
    if len(content) != size:
        raise BundleError(f"{name} changed while it was read.")
    return content


def open_file(folder: Path, name: str) -> Any:
    """A file of a bundle, to read."""
    try:  # a link that was put there after the check is not followed either
        return os.fdopen(os.open(folder / name, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), "rb")
    except OSError as error:
        raise BundleError(f"{name} cannot be read ({error.strerror}).") from error


def _size(folder: Path, name: str) -> int:
    try:
        found = os.lstat(folder / name)
    except OSError as error:
        raise BundleError(f"The bundle at {folder} has no {name} ({error.strerror}).") from error
    if not stat.S_ISREG(found.st_mode):
        raise BundleError(f"{name} is a link or no ordinary file; a bundle holds its own files.")
    return found.st_size


def _file(item: Mapping[str, Any], ending: str, largest: int) -> File:
    name, digest = item.get("file"), item.get("sha256")
    plain = isinstance(name, str) and _FILE_NAME.fullmatch(name) is not None and name.endswith(ending)
    _expect(plain, f"{name!r:.80} is no name of a {ending} file inside the bundle")
    _expect(isinstance(digest, str) and _DIGEST.fullmatch(digest) is not None, f"{name!r} has no sha256")
    size = _count(item, "bytes")
    _expect(size <= largest, f"{name!r} is said to have {size:,} bytes; at most {largest:,} are accepted")
    return File(str(name), size, str(digest))


def _count(item: Mapping[str, Any], key: str) -> int:
    value = item.get(key)
    _expect(type(value) is int and 0 <= value < 2**63, f"{key!r} is no count")
    return int(value)  # type: ignore[arg-type]


def _shape(item: Mapping[str, Any]) -> tuple[int, ...]:
    shape = item.get("shape")
    _expect(
        isinstance(shape, list) and 0 < len(shape) <= 8 and shape[0] == "batch", "a shape does not begin with a batch"
    )
    assert isinstance(shape, list)
    _expect(
        all(type(size) is int and 0 < size < 2**31 for size in shape[1:]), "a shape holds something else than sizes"
    )
    return tuple(shape[1:])


def _dict(content: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = content.get(key)
    _expect(isinstance(value, dict), f"it has no {key!r}")
    return value  # type: ignore[return-value]


def _is_list_of(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


def _expect(condition: bool, problem: str) -> None:
    if not condition:
        raise BundleError(f"{MANIFEST} cannot be used: {problem}.")
