"""An exported bundle computes what the network computes, from one weights file."""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from pamerge_runtime import BundleError, Runtime
from safetensors.numpy import load_file
from support.architectures import CASES, inputs, material
from torch import nn

import pamerge
from pamerge import Assigned, MultitaskNetwork, PamergeError, Separate, TaskSet
from pamerge.deploy import export_onnx, export_program
from pamerge.network.network import Junction
from pamerge.tasks import all_subsets


def random_network(name: str, count: int, seed: int = 0, shared: float = 0.5) -> MultitaskNetwork:
    """Random task sets; ``shared`` of the neurons serve everyone."""
    source = material(name, count)
    rng = np.random.default_rng(seed)
    subsets = list(all_subsets(source.alignment.tasks))

    def choose(junction: Junction) -> dict[int, TaskSet]:
        return {
            neuron: subsets[-1] if rng.random() < shared else subsets[rng.integers(len(subsets))]
            for neuron in junction.task_sets()
            if rng.random() > 0.1
        }

    return Assigned(choose).merge(source)


def assert_same(outputs: dict[str, np.ndarray], expected: dict[str, torch.Tensor], tolerance: float = 1e-4) -> None:
    for task, output in outputs.items():
        np.testing.assert_allclose(output, expected[task].numpy(), rtol=tolerance, atol=tolerance)


@torch.no_grad()
@pytest.mark.parametrize(("name", "count"), CASES)
def test_every_subset_computes_what_torch_computes(name: str, count: int, tmp_path: Path) -> None:
    network = random_network(name, count)
    subsets = list(all_subsets(network.tasks))
    chosen = subsets if len(subsets) < 10 else [*subsets[::9], subsets[-1]]
    export_onnx(network, tmp_path / "bundle", chosen)
    runtime = Runtime(tmp_path / "bundle")
    for batch in (1, 3):
        x = inputs(name, batch)
        expected = network(x)
        for tasks in chosen:
            outputs = runtime.run(x.numpy(), tasks)
            assert set(outputs) == tasks
            assert_same(outputs, expected)


@torch.no_grad()
@pytest.mark.parametrize("name", ["lenet5", "resnet18", "mobilenetv2", "densenet", "seresnet"])
@pytest.mark.parametrize("fuse", ["never", "auto", "always"])
def test_fusing_blocks_changes_no_output(name: str, fuse: str, tmp_path: Path) -> None:
    network, x = random_network(name, 2, seed=1), inputs(name)
    export_onnx(network, tmp_path / "bundle", fuse=fuse)
    runtime, expected = Runtime(tmp_path / "bundle"), network(x)
    for tasks in runtime.subsets:
        for task, output in runtime.run(x.numpy(), tasks).items():
            scale = float(expected[task].abs().max())
            np.testing.assert_allclose(output / scale, expected[task].numpy() / scale, atol=1e-5)


def test_fusing_leaves_fewer_layers_and_the_same_weights(tmp_path: Path) -> None:
    network = random_network("lenet5", 2)
    digests, layers = set(), {}
    for fuse in ("never", "always"):
        export_onnx(network, tmp_path / fuse, fuse=fuse)
        digests.add(hashlib.sha256((tmp_path / fuse / "weights.safetensors").read_bytes()).hexdigest())
        graph = onnx.load(tmp_path / fuse / "A+B.onnx", load_external_data=False).graph
        layers[fuse] = sum(node.op_type in ("Conv", "Gemm") for node in graph.node)
    assert len(digests) == 1
    assert layers["always"] < layers["never"]


@pytest.mark.parametrize(
    ("network", "shared"), [("lenet5", 0.85), ("small_resnet", None), ("small_resnet", 0.5), ("small_resnet", 0.0)]
)
def test_a_five_task_bundle_is_hardly_larger_than_its_weights(
    network: str, shared: float | None, tmp_path: Path
) -> None:
    """The last case is the hardest: a random task set for every neuron, so that a layer has up to 31 blocks."""
    merged = Separate().merge(material(network, 5)) if shared is None else random_network(network, 5, shared=shared)
    bundle = export_onnx(merged, tmp_path / "bundle")
    total = sum(file.stat().st_size for file in (tmp_path / "bundle").iterdir())
    assert len(bundle.subsets) == 31
    assert total == bundle.total_bytes <= 1.02 * bundle.weight_bytes + 31 * 64 * 1024


@pytest.mark.parametrize("tasks", [3, 5])
def test_every_graph_reads_the_one_weights_file(tasks: int, tmp_path: Path) -> None:
    network = random_network("small_resnet", tasks)
    export_onnx(network, tmp_path / "bundle")
    tensors = load_file(tmp_path / "bundle" / "weights.safetensors")  # safetensors' own loader accepts the layout
    content = (tmp_path / "bundle" / "weights.safetensors").read_bytes()
    known = {tensor.tobytes() for tensor in tensors.values()}
    seen: dict[str, bytes] = {}
    for graph in (tmp_path / "bundle").glob("*.onnx"):
        for tensor in onnx.load(graph, load_external_data=False).graph.initializer:
            place = {entry.key: entry.value for entry in tensor.external_data}
            if not place:
                assert len(tensor.raw_data) < 4096, "weights belong into the weights file"
                continue
            start = int(place["offset"])
            found = content[start : start + int(place["length"])]
            assert place["location"] == "weights.safetensors"
            assert found in known
            assert seen.setdefault(tensor.name, found) == found, "a name stands for the same bytes in every graph"


def test_large_tensors_start_on_a_page(tmp_path: Path) -> None:
    export_onnx(random_network("lenet5", 2), tmp_path / "bundle")
    graph = onnx.load(tmp_path / "bundle" / "A+B.onnx", load_external_data=False).graph
    places = [{entry.key: entry.value for entry in t.external_data} for t in graph.initializer if t.external_data]
    large = [place for place in places if int(place["length"]) >= 64 * 1024]
    assert large
    assert all(int(place["offset"]) % 4096 == 0 for place in large)


def test_batch_norms_behind_a_layer_are_folded_and_others_stay(tmp_path: Path) -> None:
    for name, stays in (("vgg16_bn", False), ("densenet", True)):
        export_onnx(random_network(name, 2), tmp_path / name)
        graph = onnx.load(tmp_path / name / "A+B.onnx", load_external_data=False).graph
        assert any(node.op_type == "BatchNormalization" for node in graph.node) == stays


def test_the_manifest_says_what_a_subset_costs(tmp_path: Path) -> None:
    network = random_network("lenet5", 2)
    export_onnx(network, tmp_path / "bundle")
    manifest = json.loads((tmp_path / "bundle" / "manifest.json").read_text())
    assert manifest["input"] == {"name": "input", "type": "float32", "shape": ["batch", 1, 28, 112]}
    assert manifest["outputs"]["B"] == {"type": "float32", "shape": ["batch", 4]}
    for subset, entry in manifest["subsets"].items():
        tasks = TaskSet.parse(subset)
        assert entry["flops"] == network.flops(tasks)
        assert entry["weight_bytes"] == 4 * network.parameter_count(tasks)
        content = (tmp_path / "bundle" / entry["file"]).read_bytes()
        assert entry["sha256"] == hashlib.sha256(content).hexdigest()


class Unusual(nn.Module):
    """Operations that the writer has no entry for."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding="same")
        self.up = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.prelu = nn.PReLU(4)
        self.norm = nn.InstanceNorm2d(4, affine=True)
        self.pool = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.gelu(self.norm(self.conv(x)))
        x = self.pool(self.prelu(self.up(x))) * 0.5 + 1
        return torch.softmax(self.fc(x.mean((2, 3))), 1)


@torch.no_grad()
def test_operations_without_an_entry_go_through_torchs_exporter(tmp_path: Path) -> None:
    x = torch.randn(2, 2, 7, 7)
    network = pamerge.merge({"A": Unusual().eval(), "B": Unusual().eval()}, [x], Separate())
    export_onnx(network, tmp_path / "bundle", ["A+B"])
    for batch in (x, x[:1]):
        assert_same(Runtime(tmp_path / "bundle").run(batch.numpy()), network(batch))


@torch.no_grad()
def test_a_program_of_a_subset_runs_without_pamerge(tmp_path: Path) -> None:
    network, x = random_network("lenet5", 2), inputs("lenet5")
    export_program(network, tmp_path / "a.pt2", {"A"})
    program = torch.export.load(tmp_path / "a.pt2").module()
    outputs = program(x)
    assert set(outputs) == {"A"}
    torch.testing.assert_close(outputs["A"], network(x)["A"], rtol=1e-4, atol=1e-5)
    assert program(x[:1])["A"].shape == (1, 3)


# -- mistakes -------------------------------------------------------------------------------------------------------


def test_a_folder_is_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = random_network("lenet5", 2)

    def fail(handle: int) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", fail)
        with pytest.raises(OSError, match="disk full"):
            export_onnx(network, tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []
    export_onnx(network, tmp_path / "bundle")
    with pytest.raises(PamergeError, match="overwrite=True"):
        export_onnx(network, tmp_path / "bundle")
    export_onnx(network, tmp_path / "bundle", ["A"], overwrite=True)
    assert Runtime(tmp_path / "bundle").subsets == (frozenset("A"),)
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_a_folder_that_is_no_bundle_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    with pytest.raises(PamergeError, match="no bundle"):
        export_onnx(random_network("lenet5", 2), tmp_path / "thesis", overwrite=True)
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "years of work"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subsets": ["A+Z"]}, "Unknown task"),
        ({"subsets": []}, "No subsets"),
        ({"subsets": "some"}, "expected"),
        ({"fuse": "maybe"}, "fuse='maybe'"),
    ],
)
def test_mistakes_are_explained(options: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(PamergeError, match=message):
        export_onnx(random_network("lenet5", 2), tmp_path / "bundle", **options)


def test_only_float32_is_exported(tmp_path: Path) -> None:
    with pytest.raises(PamergeError, match=r"network\.float\(\)"):
        export_onnx(copy.deepcopy(random_network("lenet5", 2)).double(), tmp_path / "bundle")


def test_names_that_files_cannot_have_still_work(tmp_path: Path) -> None:
    x = inputs("lenet5")
    networks = dict(zip(("a b", "größe"), material("lenet5", 2).networks.values(), strict=True))
    network = pamerge.merge(networks, [x], Separate())
    export_onnx(network, tmp_path / "bundle")
    with torch.no_grad():
        assert_same(Runtime(tmp_path / "bundle").run(x.numpy(), "größe"), network(x))


def test_a_subset_that_was_not_exported_is_named(tmp_path: Path) -> None:
    export_onnx(random_network("lenet5", 2), tmp_path / "bundle", ["A"])
    with pytest.raises(BundleError, match=r"no graph for A\+B; it has: A"):
        Runtime(tmp_path / "bundle").run(inputs("lenet5").numpy())
