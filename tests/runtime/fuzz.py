"""Opens damaged copies of a bundle: ``python fuzz.py BUNDLE SCRATCH SEED COUNT``; prints how many were accepted.

Most cases get fresh checksums, as an attacker would make them, so that the checks behind these are reached. Whatever is
opened is loaded and run as well. The process has little memory and each case little time; leaving them, any other error
than a ``BundleError`` or one of onnxruntime's, and any file that is opened elsewhere end it with an error.
"""

from __future__ import annotations

import hashlib
import json
import random
import resource
import shutil
import signal
import struct
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from pamerge_runtime import BundleError, Runtime
from pamerge_runtime.manifest import checksum

WEIGHTS, MANIFEST, GRAPH = "weights.safetensors", "manifest.json", "A+B.onnx"
ELSEWHERE = ["../secret", "/etc/passwd", "link", "./weights.safetensors", "weights.safetensors/..", "", "\0", GRAPH]
NUMBERS = [0, 1, 7, 8, 4095, 4096, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**64, 10**30, -1]
Files = dict[str, bytes]


def damage(content: bytes, chance: random.Random) -> bytes:
    """Bytes flipped, cut out, repeated or put in."""
    found = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(found) + 1)
        match chance.randrange(4):
            case 0 if at < len(found):
                found[at] = chance.randrange(256)
            case 1:
                del found[at : at + chance.randint(1, 30)]
            case 2:
                found[at:at] = chance.randbytes(chance.randint(1, 8))
            case _:
                found[at:at] = found[max(0, at - 20) : at]
    return bytes(found)


def honest(files: Files) -> Files:
    """The files with a manifest that agrees with them, if it still is one."""
    try:
        manifest = json.loads(files[MANIFEST])
        for entry in (manifest["weights"], *manifest["subsets"].values()):
            content = files[entry["file"]]
            entry.update(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
        manifest["sha256"] = checksum(manifest)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return files
    return {**files, MANIFEST: json.dumps(manifest).encode()}


# -- kinds of damage; the name says what is damaged -------------------------------------------------------------------


def any_file_as_it_is(files: Files, chance: random.Random) -> Files:
    name = chance.choice(sorted(files))
    return {**files, name: damage(files[name], chance)}


def graph_bytes(files: Files, chance: random.Random) -> Files:
    return honest({**files, GRAPH: damage(files[GRAPH], chance)})


def graph_truncated(files: Files, chance: random.Random) -> Files:
    return honest({**files, GRAPH: files[GRAPH][: chance.randrange(len(files[GRAPH]))]})


def graph_references(files: Files, chance: random.Random) -> Files:
    model = onnx.ModelProto.FromString(files[GRAPH])
    tensor = chance.choice([t for t in model.graph.initializer if t.external_data])
    entry = chance.choice(tensor.external_data)
    match chance.randrange(5):
        case 0:
            entry.value = chance.choice(ELSEWHERE)
        case 1:
            entry.value = str(chance.choice([*NUMBERS, chance.randrange(len(files[WEIGHTS]))]))
        case 2:
            del tensor.dims[:]
            tensor.dims.extend(chance.choice([n for n in NUMBERS if n < 2**63]) for _ in range(chance.randrange(5)))
        case 3:
            tensor.data_type = chance.randrange(20)
        case _:
            tensor.external_data.add(key=chance.choice(["location", "offset", "length", "x"]), value="/etc/passwd")
    return honest({**files, GRAPH: model.SerializeToString()})


def header_bytes(files: Files, chance: random.Random) -> Files:
    content = files[WEIGHTS]
    stop = 8 + struct.unpack("<Q", content[:8])[0]
    return honest({**files, WEIGHTS: damage(content[:stop], chance) + content[stop:]})


def header_numbers(files: Files, chance: random.Random) -> Files:
    content = files[WEIGHTS]
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    item = header[chance.choice([name for name in header if name != "__metadata__"])]
    numbers = item[chance.choice(["shape", "data_offsets"])]
    numbers[chance.randrange(len(numbers))] = chance.choice([*NUMBERS, 1.5, None, "8"])
    text = json.dumps(header).encode()
    return honest({**files, WEIGHTS: struct.pack("<Q", len(text)) + text + content[8 + length :]})


def header_length(files: Files, chance: random.Random) -> Files:
    number = struct.pack("<Q", chance.choice([n for n in NUMBERS if 0 <= n < 2**64]))
    return honest({**files, WEIGHTS: number + files[WEIGHTS][8:]})


def weights_size(files: Files, chance: random.Random) -> Files:
    content = files[WEIGHTS]
    cut = content[: chance.randrange(len(content))] if chance.random() < 0.7 else content + chance.randbytes(99)
    return honest({**files, WEIGHTS: cut})


def manifest_bytes(files: Files, chance: random.Random) -> Files:
    damaged = damage(files[MANIFEST], chance)
    try:
        manifest = json.loads(damaged)
        manifest["sha256"] = checksum(manifest)
    except (ValueError, TypeError, AttributeError):
        return {**files, MANIFEST: damaged}
    return {**files, MANIFEST: json.dumps(manifest).encode()}


def manifest_entry(files: Files, chance: random.Random) -> Files:
    manifest: Any = json.loads(files[MANIFEST])
    spot = manifest
    while True:
        key = chance.choice(sorted(spot) if isinstance(spot, dict) else range(len(spot)))
        if not isinstance(spot[key], (dict, list)) or not spot[key] or chance.random() < 0.2:
            break
        spot = spot[key]
    spot[key] = chance.choice([*NUMBERS, *ELSEWHERE, None, True, 0.5, [], {}, [[]], "link.onnx", "link.safetensors"])
    manifest["sha256"] = checksum(manifest)
    return {**files, MANIFEST: json.dumps(manifest).encode()}


KINDS: list[Callable[[Files, random.Random], Files]] = [
    any_file_as_it_is, graph_bytes, graph_truncated, graph_references, header_bytes, header_numbers, header_length,
    weights_size, manifest_bytes, manifest_entry,
]  # fmt: skip


def attempt(folder: Path) -> bool:
    """Whether a bundle is opened; if so, it is run, too."""
    try:
        runtime = Runtime(folder)
    except BundleError:
        return False
    content = (folder / WEIGHTS).read_bytes()
    for subset in runtime.manifest.subsets.values():
        assert (folder / subset.graph.name).resolve().parent == folder
        for tensor in onnx.ModelProto.FromString((folder / subset.graph.name).read_bytes()).graph.initializer:
            place = {entry.key: entry.value for entry in tensor.external_data}
            if place:
                assert place["location"] == WEIGHTS
                assert int(place["offset"]) + int(place["length"]) <= len(content)
    x = np.zeros((1, *runtime.manifest.input_shape), np.float32)
    for tasks in runtime.subsets:
        try:
            runtime.run(x, tasks)
        except BundleError:
            continue
        except Exception as error:  # onnxruntime's own complaints about a graph that it loaded
            if not type(error).__module__.startswith("onnxruntime"):
                raise
    return True


def meaning(files: Files) -> dict[str, Any]:
    """The files, with the manifest as what it says: spaces make no difference."""
    return {**files, MANIFEST: json.loads(files[MANIFEST])}


def main(bundle: Path, scratch: Path, seed: int, count: int) -> None:
    """Try ``count`` cases."""
    files = {path.name: path.read_bytes() for path in bundle.iterdir()}
    (scratch / "secret").write_text("not yours")
    folder = scratch.resolve() / "bundle"
    shutil.copytree(bundle, folder)
    for link in ("link", "link.onnx", "link.safetensors"):
        (folder / link).symlink_to(scratch / "secret")
    assert attempt(folder), "the bundle is good before it is damaged"
    resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30, 8 * 2**30))

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(("/etc", str(scratch))):
            inside = Path(arguments[0]).parent == folder and not Path(arguments[0]).name.startswith("link.")
            assert inside or arguments[2] & 0o400000, f"opened {arguments[0]}"  # O_NOFOLLOW

    sys.addaudithook(watch)
    accepted: Counter[str] = Counter()
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        damaged = kind(files, random.Random(f"{seed}/{number}"))
        for name, content in damaged.items():
            (folder / name).write_bytes(content)
        print(f"{kind.__name__} {number}", file=sys.stderr)  # the last line names the case that ended it
        signal.alarm(20)
        accepted[kind.__name__] += attempt(folder) and meaning(damaged) != meaning(honest(files))
        signal.alarm(0)
    print(json.dumps(accepted))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
