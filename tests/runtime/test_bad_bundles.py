"""Bundles that are damaged or made to harm are refused before anything is run."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pamerge_runtime import BundleError, Runtime
from pamerge_runtime.graph_check import check_graph
from pamerge_runtime.manifest import parse_manifest
from support.architectures import material

from pamerge import Separate
from pamerge.deploy import export_onnx


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good") / "bundle"
    export_onnx(Separate().merge(material("small_resnet", 2)), folder)
    return folder


@pytest.fixture
def bundle(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "bundle"))


def change(folder: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    edit(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def replace_graph(folder: Path, content: bytes) -> None:
    """Another graph for A, with a manifest that agrees: what an attacker would do."""
    (folder / "A.onnx").write_bytes(content)
    entry = {"file": "A.onnx", "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    change(folder, lambda manifest: manifest["subsets"]["A"].update(entry))


def test_a_flipped_byte_in_any_file_is_found(bundle: Path) -> None:
    for file in sorted(bundle.iterdir()):
        content = file.read_bytes()
        # The manifest has no checksum of its own; most of its bytes are checked by what they say.
        for at in {0, content.find(b"sha256"), len(content) - 2} - {-1}:
            file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
            if file.name != "manifest.json":
                with pytest.raises(BundleError, match="checksum"):
                    Runtime(bundle)
            else:
                with pytest.raises(BundleError, match=r"manifest\.json"):
                    Runtime(bundle)
        file.write_bytes(content)
    Runtime(bundle)


@pytest.mark.parametrize("name", ["A.onnx", "weights.safetensors", "manifest.json"])
def test_a_missing_or_truncated_file_is_named(bundle: Path, name: str) -> None:
    content = (bundle / name).read_bytes()
    (bundle / name).write_bytes(content[:-5])
    with pytest.raises(BundleError, match=name):
        Runtime(bundle)
    (bundle / name).unlink()
    with pytest.raises(BundleError, match=f"has no {name}"):
        Runtime(bundle)


@pytest.mark.parametrize(
    "name", ["../secret.onnx", "/etc/passwd", "..", "a/b.onnx", "C:\\x.onnx", ".hidden.onnx", "A.onnx\0", "", None, 3]
)
def test_names_that_lead_out_of_the_folder_are_refused(bundle: Path, name: object) -> None:
    change(bundle, lambda manifest: manifest["subsets"]["A"].update(file=name))
    with pytest.raises(BundleError, match=r"no name of a [.]onnx file inside the bundle"):
        Runtime(bundle)


@pytest.mark.parametrize("name", ["A.onnx", "weights.safetensors", "manifest.json"])
def test_links_are_refused(bundle: Path, name: str) -> None:
    (bundle / name).rename(bundle.parent / "elsewhere")
    (bundle / name).symlink_to(bundle.parent / "elsewhere")
    with pytest.raises(BundleError, match=f"{name} is a link"):
        Runtime(bundle)


def test_something_that_is_no_file_is_refused_without_waiting(bundle: Path) -> None:
    (bundle / "A.onnx").unlink()
    os.mkfifo(bundle / "A.onnx")
    with pytest.raises(BundleError, match=r"A.onnx is a link or no ordinary file"):
        Runtime(bundle)


def test_a_huge_declared_size_is_refused_before_reading(bundle: Path) -> None:
    change(bundle, lambda manifest: manifest["subsets"]["A"].update(bytes=2**50))
    with pytest.raises(BundleError, match="at most"):
        Runtime(bundle)
    change(bundle, lambda manifest: manifest["subsets"]["A"].update(bytes=2**20))
    with pytest.raises(BundleError, match="the manifest says 1,048,576"):
        Runtime(bundle)


def test_a_huge_manifest_is_not_read(bundle: Path) -> None:
    with open(bundle / "manifest.json", "r+b") as file:
        file.truncate(2**40)  # takes no space on disk
    with pytest.raises(BundleError, match="a manifest has at most"):
        Runtime(bundle)


@pytest.mark.parametrize("text", ["", "[" * 100_000, "nonsense", "[]", '{"format": "pamerge-bundle"}', "9" * 5000])
def test_a_manifest_that_is_none_is_refused(bundle: Path, text: str) -> None:
    (bundle / "manifest.json").write_text(text)
    with pytest.raises(BundleError, match=r"manifest\.json"):
        Runtime(bundle)


def test_a_newer_bundle_asks_for_a_newer_runtime(bundle: Path) -> None:
    change(bundle, lambda manifest: manifest.update(version=2))
    with pytest.raises(BundleError, match="format version 2; this runtime reads up to 1"):
        Runtime(bundle)


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "A.onnx", "", "weights.safetensors/../../x"])
def test_a_graph_that_reads_another_file_is_refused(bundle: Path, location: str) -> None:
    model = onnx.load(bundle / "A.onnx", load_external_data=False)
    entries = next(tensor for tensor in model.graph.initializer if tensor.external_data).external_data
    next(entry for entry in entries if entry.key == "location").value = location
    replace_graph(bundle, model.SerializeToString())
    with pytest.raises(BundleError, match=r"reads 'weights\.safetensors' only"):
        Runtime(bundle)


@pytest.mark.parametrize("offset", ["-1", "99999999999", "1e3", "²", "1" * 400])
def test_a_graph_that_reads_outside_of_the_weights_is_refused(bundle: Path, offset: str) -> None:
    model = onnx.load(bundle / "A.onnx", load_external_data=False)
    entries = next(tensor for tensor in model.graph.initializer if tensor.external_data).external_data
    next(entry for entry in entries if entry.key == "offset").value = offset
    replace_graph(bundle, model.SerializeToString())
    with pytest.raises(BundleError, match="outside of the weights file"):
        Runtime(bundle)


def test_a_file_name_cannot_hide_in_other_parts_of_a_graph(bundle: Path) -> None:
    original = onnx.load(bundle / "A.onnx", load_external_data=False)
    hidden = next(t for t in original.graph.initializer if t.external_data)
    models = [onnx.ModelProto.FromString(original.SerializeToString()) for _ in range(4)]
    models[0].graph.node.append(onnx.helper.make_node("Constant", [], ["x"], value=hidden))
    models[1].graph.node.append(
        onnx.helper.make_node("If", ["c"], ["y"], then_branch=original.graph, else_branch=original.graph)
    )
    models[2].graph.sparse_initializer.add().values.CopyFrom(hidden)
    models[3].functions.add(name="f")
    for model in models:
        replace_graph(bundle, model.SerializeToString())
        with pytest.raises(BundleError, match="refused"):
            Runtime(bundle)


def test_a_graph_of_other_tasks_is_refused(bundle: Path) -> None:
    replace_graph(bundle, (bundle / "B.onnx").read_bytes())
    with pytest.raises(BundleError, match="does not compute A"):
        Runtime(bundle).load("A")


# -- fuzzing -------------------------------------------------------------------------------------------------------


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


def survive_damage(good: Path, rounds: int) -> None:
    """Damaged graphs and manifests are accepted or refused; nothing else happens."""
    chance = random.Random(0)
    graph, manifest = (good / "A+B.onnx").read_bytes(), (good / "manifest.json").read_bytes()
    size = (good / "weights.safetensors").stat().st_size
    for _ in range(rounds):
        damaged = damage(graph, chance)
        try:
            check_graph(damaged, "A+B.onnx", "weights.safetensors", size)
        except BundleError:
            continue
        try:
            model = onnx.ModelProto.FromString(damaged)
        except DecodeError:  # then onnxruntime reads nothing, either
            continue
        for tensor in model.graph.initializer:
            assert all(e.value == "weights.safetensors" for e in tensor.external_data if e.key == "location")
    for _ in range(rounds):
        try:
            parsed = parse_manifest(json.loads(damage(manifest, chance)))
        except (BundleError, ValueError):
            continue
        assert all("/" not in s.graph.name and ".." not in s.graph.name for s in parsed.subsets.values())


SMALL = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=12), st.just("../x.onnx"))
JSON = st.recursive(SMALL, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner))


def refuse_or_accept(good: Path, data: st.DataObject) -> None:
    """One entry of a good manifest becomes something else."""
    manifest = spot = json.loads((good / "manifest.json").read_text())
    while True:
        keys = list(spot) if isinstance(spot, dict) else range(len(spot))
        key = data.draw(st.sampled_from(sorted(keys)))
        if not isinstance(spot[key], (dict, list)) or not spot[key] or data.draw(st.booleans()):
            spot[key] = data.draw(JSON)
            break
        spot = spot[key]
    try:
        parsed = parse_manifest(manifest)
    except BundleError:
        return
    assert all("/" not in subset.graph.name for subset in parsed.subsets.values())


RELAXED = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}


def test_damaged_files_are_refused_quickly(good: Path) -> None:
    survive_damage(good, rounds=200)


@settings(max_examples=100, **RELAXED)
@given(data=st.data())
def test_any_manifest_is_accepted_or_refused(good: Path, data: st.DataObject) -> None:
    refuse_or_accept(good, data)


@pytest.mark.slow
def test_thousands_of_damaged_files_are_refused(good: Path) -> None:
    survive_damage(good, rounds=4000)


@pytest.mark.slow
@settings(max_examples=3000, **RELAXED)
@given(data=st.data())
def test_thousands_of_manifests_are_accepted_or_refused(good: Path, data: st.DataObject) -> None:
    refuse_or_accept(good, data)
