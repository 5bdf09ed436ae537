"""Bundles that are damaged or made to harm are refused before anything is run."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pamerge_runtime import BundleError, Runtime, read_manifest
from pamerge_runtime.manifest import Manifest, checksum, parse_manifest
from support.architectures import material

from pamerge import PamergeError, Separate
from pamerge.deploy import export_onnx, measure


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
    manifest["sha256"] = checksum(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def replace_graph(folder: Path, content: bytes) -> None:
    """Another graph for A, with a manifest that agrees: what an attacker would do."""
    (folder / "A.onnx").write_bytes(content)
    entry = {"file": "A.onnx", "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    change(folder, lambda manifest: manifest["subsets"]["A"].update(entry))


def test_a_flipped_byte_in_any_file_is_found(bundle: Path) -> None:
    for file in sorted(bundle.iterdir()):
        content = file.read_bytes()
        for at in {0, content.find(b"sha256"), len(content) - 2} - {-1}:
            file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
            with pytest.raises(BundleError, match=r"manifest\.json" if file.name == "manifest.json" else "checksum"):
                Runtime(bundle)
        file.write_bytes(content)
    Runtime(bundle)


def test_a_number_in_the_manifest_that_was_changed_is_found(bundle: Path) -> None:
    text = (bundle / "manifest.json").read_text()
    for at in [match.start() for match in re.finditer(r"[0-9]", text)]:
        (bundle / "manifest.json").write_text(text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :])
        with pytest.raises(BundleError):
            read_manifest(bundle)
    flops = re.search(r'"flops": \d', text)
    assert flops is not None
    (bundle / "manifest.json").write_text(text[: flops.end() - 1] + "7" + text[flops.end() - 1 :])
    with pytest.raises(BundleError, match=r"manifest\.json is damaged or was changed"):
        Runtime(bundle)
    with pytest.raises(PamergeError, match=r"manifest\.json is damaged or was changed"):
        measure({"bundle": bundle}, repeats=1, memory=False)


def test_an_older_bundle_without_this_checksum_is_to_be_exported_again(bundle: Path) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    del manifest["sha256"]
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="Export the network again"):
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
    with pytest.raises(BundleError, match="no tensor of the weights file"):
        Runtime(bundle)


def test_a_graph_that_reads_other_bytes_of_the_weights_is_refused(bundle: Path) -> None:
    """onnxruntime would read the header as numbers, or half of one tensor and half of the next."""
    for field, value in (("offset", "0"), ("offset", "4100"), ("length", "4")):
        model = onnx.load(bundle / "B.onnx", load_external_data=False)
        entries = next(tensor for tensor in model.graph.initializer if tensor.external_data).external_data
        next(entry for entry in entries if entry.key == field).value = value
        replace_graph(bundle, model.SerializeToString())
        with pytest.raises(BundleError, match="no tensor of the weights file"):
            Runtime(bundle)
    model = onnx.load(bundle / "B.onnx", load_external_data=False)
    tensor = next(tensor for tensor in model.graph.initializer if tensor.external_data)
    tensor.dims[0] *= 2
    replace_graph(bundle, model.SerializeToString())
    with pytest.raises(BundleError, match="another shape or type"):
        Runtime(bundle)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda header: header.update(x={"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}), "overlap"),
        (lambda header: header.popitem(), "do not fill it"),
        (lambda header: header.update(x=[]), "'x' is not described"),
        (lambda header: header.update(x={"dtype": "F32", "shape": [2**60], "data_offsets": [0, 4]}), "not described"),
    ],
)
def test_a_weights_file_that_contradicts_itself_is_refused(
    bundle: Path, edit: Callable[[dict[str, Any]], object], message: str
) -> None:
    content = (bundle / "weights.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    edit(header)
    text = json.dumps(header).encode()
    changed = len(text).to_bytes(8, "little") + text + content[8 + length :]
    (bundle / "weights.safetensors").write_bytes(changed)
    entry = {"bytes": len(changed), "sha256": hashlib.sha256(changed).hexdigest()}
    change(bundle, lambda manifest: manifest["weights"].update(entry))
    with pytest.raises(BundleError, match=message):
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


# -- any manifest -----------------------------------------------------------------------------------------------------


ELSEWHERE = [f"{place}x{end}" for place in ("../", "/", "a/", "..\\", "./") for end in (".onnx", ".safetensors")]
SMALL = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=12))
JSON = st.recursive(SMALL, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner))


def places(content: Any) -> Iterator[tuple[Any, Any]]:
    """Every entry, however deep: what holds it, and its key."""
    for key in content if isinstance(content, dict) else range(len(content)):
        yield content, key
        if isinstance(content[key], (dict, list)):
            yield from places(content[key])


def parsed_or_refused(good: Path, data: st.DataObject) -> Manifest | None:
    """One entry of a good manifest becomes something else; anything but a BundleError is a crash."""
    manifest = json.loads((good / "manifest.json").read_text())
    spot, key = data.draw(st.sampled_from(list(places(manifest))))
    spot[key] = data.draw(st.sampled_from(ELSEWHERE) | JSON if isinstance(spot[key], str) else JSON)
    manifest["sha256"] = checksum(manifest)
    try:
        return parse_manifest(manifest)
    except BundleError:
        return None


def stays_inside(manifest: Manifest) -> bool:
    names = [manifest.weights.name, *(subset.graph.name for subset in manifest.subsets.values())]
    return all(name not in ("", ".", "..") and not set(name) & {"/", "\\"} for name in names)


RELAXED = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}


@settings(max_examples=300, **RELAXED)
@given(data=st.data())
def test_any_manifest_is_refused_or_names_files_of_its_folder(good: Path, data: st.DataObject) -> None:
    manifest = parsed_or_refused(good, data)
    assert manifest is None or stays_inside(manifest)


@pytest.mark.slow
@settings(max_examples=3000, **RELAXED)
@given(data=st.data())
def test_thousands_of_manifests_are_refused_or_name_files_of_their_folder(good: Path, data: st.DataObject) -> None:
    manifest = parsed_or_refused(good, data)
    assert manifest is None or stays_inside(manifest)
