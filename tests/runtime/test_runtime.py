"""The runtime: right answers from many threads, a bounded cache, and clear words about wrong input."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pamerge_runtime import BundleError, Runtime
from pamerge_runtime.footprint import memory
from support.architectures import inputs, material

from pamerge import Assigned
from pamerge.deploy import export_onnx
from pamerge.tasks import all_subsets


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tasks; neurons take turns in serving one, two or all of them."""
    subsets = list(all_subsets("ABC"))
    network = Assigned(lambda junction: {n: subsets[n % 7] for n in junction.task_sets()}).merge(material("lenet5", 3))
    folder = tmp_path_factory.mktemp("runtime") / "bundle"
    export_onnx(network, folder)
    return folder


def hammer(runtime: Runtime, threads: int, calls: int) -> None:
    """Random subsets from many threads; every answer is compared with the one for all tasks."""
    rng = np.random.default_rng(0)
    batches = [rng.standard_normal((1, 1, 28, 112), dtype=np.float32) for _ in range(4)]
    expected = [runtime.run(x) for x in batches]
    problems: list[BaseException] = []

    def work(seed: int) -> None:
        own = np.random.default_rng(seed)
        try:
            for _ in range(calls // threads):
                number, tasks = own.integers(4), runtime.subsets[own.integers(len(runtime.subsets))]
                for task, output in runtime.run(batches[number], tasks).items():
                    np.testing.assert_allclose(output, expected[number][task], rtol=1e-4, atol=1e-4)
        except BaseException as error:
            problems.append(error)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not problems, problems[0]


def test_many_threads_get_right_answers_in_bounded_memory(bundle: Path) -> None:
    runtime = Runtime(bundle)
    hammer(runtime, threads=16, calls=160)  # everything is loaded now
    before = memory("VmRSS")
    hammer(runtime, threads=16, calls=2000)
    assert memory("VmRSS") - before < 64 * 2**20
    assert len(runtime.loaded) == 7


def test_threads_may_push_each_others_sessions_out(bundle: Path) -> None:
    runtime = Runtime(bundle, max_sessions=2)
    hammer(runtime, threads=8, calls=160)
    assert len(runtime.loaded) == 2


def test_sessions_are_made_when_they_are_needed_and_kept(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, x = Runtime(bundle, max_sessions=2), inputs("lenet5").numpy()
    made: list[frozenset[str]] = []
    make: Callable[..., object] = runtime._make
    monkeypatch.setattr(runtime, "_make", lambda subset: made.append(subset.tasks) or make(subset))
    assert runtime.loaded == ()
    for tasks in ("A", "B", "A", "B"):
        runtime.run(x, tasks)
    assert made == [frozenset("A"), frozenset("B")]
    runtime.run(x, "A")
    runtime.run(x, "C")  # B was not used for longest
    assert runtime.loaded == (frozenset("A"), frozenset("C"))


def test_one_thread_makes_a_session_and_the_others_wait(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, made = Runtime(bundle), []
    make = runtime._make
    monkeypatch.setattr(runtime, "_make", lambda subset: made.append(subset.tasks) or make(subset))
    workers = [threading.Thread(target=runtime.load, args=("A",)) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert made == [frozenset("A")]


def test_settings_reach_onnxruntime_and_change_no_output(bundle: Path) -> None:
    x = inputs("lenet5").numpy()
    expected = Runtime(bundle).run(x)
    for options in ({"threads": 2}, {"small": True}, {"providers": ["CPUExecutionProvider"]}):
        for task, output in Runtime(bundle, **options).run(x).items():
            np.testing.assert_allclose(output, expected[task], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("x", "tasks", "message"),
    [
        (np.zeros((1, 1, 28, 112), np.float32), "Z", "unknown task.*'Z'; it has: A, B, C"),
        (np.zeros((1, 1, 28, 112), np.float32), [], "empty set of tasks"),
        (np.zeros((1, 3, 28, 112), np.float32), "A", "shape 1×3×28×112; expected batch×1×28×112"),
        (np.zeros((0, 1, 28, 112), np.float32), "A", "shape 0×1×28×112"),
        (np.zeros((1, 28, 112), np.float32), "A", "shape 1×28×112"),
        (np.zeros((1, 1, 28, 112), np.int32), "A", "type int32; expected float32"),
    ],
)
def test_wrong_input_is_explained(bundle: Path, x: np.ndarray, tasks: object, message: str) -> None:
    with pytest.raises(BundleError, match=message):
        Runtime(bundle).run(x, tasks)


@pytest.mark.parametrize("options", [{"threads": 0}, {"max_sessions": 0}, {"threads": True}])
def test_wrong_settings_are_explained(bundle: Path, options: dict[str, int]) -> None:
    with pytest.raises(BundleError, match=next(iter(options))):
        Runtime(bundle, **options)
