"""Files: whole or refused, and nothing in them is executed."""

from __future__ import annotations

import json
import struct

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from support.architectures import inputs, material

import pamerge
from pamerge import FileFormatError, PamergeError, Separate
from pamerge.network.files import describe, from_description


@pytest.fixture
def saved(tmp_path):
    network = Separate().merge(material("lenet5", 2))
    path = tmp_path / "network.pam"
    pamerge.save(network, path)
    return path


def change_header(path, **changes: str) -> None:
    """Rewrites fields of the header and leaves everything else as it was."""
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    header["__metadata__"].update(changes)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size :])


def test_loading_needs_no_class_of_the_user(saved, monkeypatch) -> None:
    monkeypatch.delattr(pamerge.zoo, "lenet5")
    assert set(pamerge.load(saved)(inputs("lenet5"))) == {"A", "B"}


def test_the_file_is_ordinary_safetensors_with_readable_names(saved) -> None:
    from safetensors import safe_open

    with safe_open(saved, framework="pt") as file:
        assert {"conv1:A.weight", "A:fc5:A.bias"} <= set(file.keys())


def test_a_saved_network_names_no_folder_of_the_machine(saved) -> None:
    assert b"site-packages" not in saved.read_bytes()
    assert b".py" not in saved.read_bytes()


@pytest.mark.parametrize("keep", [0, 4, 8, 100, 0.5, 0.99])
def test_a_truncated_file_is_refused(saved, keep: float) -> None:
    content = saved.read_bytes()
    saved.write_bytes(content[: keep if isinstance(keep, int) else int(keep * len(content))])
    with pytest.raises(FileFormatError, match="truncated or not a safetensors file"):
        pamerge.load(saved)


def test_a_changed_weight_is_noticed(saved) -> None:
    content = bytearray(saved.read_bytes())
    content[-5] ^= 1
    saved.write_bytes(bytes(content))
    with pytest.raises(FileFormatError, match="damaged or was changed"):
        pamerge.load(saved)


def test_a_changed_description_is_noticed(saved) -> None:
    change_header(saved, description="{}")
    with pytest.raises(FileFormatError, match="damaged or was changed"):
        pamerge.load(saved)


def test_a_newer_version_says_to_update(saved) -> None:
    change_header(saved, version="99")
    with pytest.raises(FileFormatError, match=r"format version 99; this pamerge reads up to 1\. Update pamerge"):
        pamerge.load(saved)


def test_another_safetensors_file_is_refused(tmp_path) -> None:
    save_file({"x": torch.zeros(2)}, tmp_path / "other.pam")
    with pytest.raises(FileFormatError, match="not one of pamerge's"):
        pamerge.load(tmp_path / "other.pam")


def test_a_missing_file_or_folder_is_said(tmp_path) -> None:
    with pytest.raises(FileFormatError, match="There is no file"):
        pamerge.load(tmp_path / "nothing.pam")
    with pytest.raises(PamergeError, match=r"the folder .* does not exist"):
        pamerge.save(Separate().merge(material("lenet5", 2)), tmp_path / "no" / "network.pam")


def test_an_operation_outside_the_table_is_refused(saved) -> None:
    description = describe(pamerge.load(saved).structure)
    node = next(node for node in description["nodes"] if node["op"] == "aten.relu.default")
    node["op"] = "aten.save.default"
    with pytest.raises(PamergeError, match=r"'aten\.save\.default' is not in the op table"):
        from_description(description)


def test_changing_a_description_leaves_the_network_alone() -> None:
    structure = Separate().merge(material("lenet5", 2)).structure
    before = json.dumps(describe(structure))
    for node in describe(structure)["nodes"]:
        for argument in node["settings"].get("args", []):
            argument.clear() if isinstance(argument, list) else None
    assert json.dumps(describe(structure)) == before


def test_a_failed_save_leaves_the_old_file_and_no_litter(saved, monkeypatch) -> None:
    before = saved.read_bytes()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        pamerge.save(Separate().merge(material("lenet5", 3)), saved)
    assert saved.read_bytes() == before
    assert [item.name for item in saved.parent.iterdir()] == ["network.pam"]


SMALL = Separate().merge


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_tampered_description_gives_a_format_error_or_a_valid_network(data, tmp_path_factory) -> None:
    """Also with a checksum that somebody has recomputed."""
    network = SMALL(material("lenet5", 2))
    description = describe(network.structure)
    spot = description
    while isinstance(spot, (dict, list)) and spot:  # walk to a random place and put nonsense there
        key = data.draw(st.sampled_from(sorted(spot) if isinstance(spot, dict) else range(len(spot))))
        if not isinstance(spot[key], (dict, list)) or not spot[key] or data.draw(st.integers(0, 9)) == 0:
            spot[key] = data.draw(st.sampled_from([None, -1, 3, "x", [], {}, [[0, 2]], "linear", "A+B", 10**6]))
            break
        spot = spot[key]
    path = tmp_path_factory.mktemp("tampered") / "network.pam"
    from pamerge.network import files

    tensors = {name: tensor.contiguous() for name, tensor in network.blocks.state_dict().items()}
    text = json.dumps(description)
    header = {
        "format": "pamerge",
        "version": "1",
        "description": text,
        "sha256": files._digest(text, tensors),
    }
    path.write_bytes(files.to_bytes(tensors, metadata=header))
    try:
        loaded = pamerge.load(path)
    except FileFormatError:
        return
    loaded.check()
