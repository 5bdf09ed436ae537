"""Running a bundle: a session for each subset of tasks that is asked for, all over the one weights file."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime  # type: ignore[import-untyped]
from numpy.typing import NDArray

from pamerge_runtime.errors import BundleError
from pamerge_runtime.graph_check import check_graph
from pamerge_runtime.manifest import Manifest, Subset, check_file, read_exactly, read_manifest
from pamerge_runtime.weights_check import stored_tensors

Array = NDArray[Any]


class Runtime:
    """Runs any subset of a bundle's tasks.

    Opening a bundle checks its manifest, the checksum of every file and what every graph reads. A session is made
    when a subset is first run, and kept; the weights are mapped from the file, which all sessions share, except for
    those that onnxruntime rearranges for speed. ``run`` may be called from several threads.

    Args:
        folder: what ``pamerge.export_onnx`` wrote.
        threads: threads of one inference.
        providers: onnxruntime's execution providers, the preferred first.
        max_sessions: how many subsets are kept ready; the one that was not used for longest makes room.
        small: use the weights where they are mapped, without the copies for speed that each subset else makes.
    """

    def __init__(
        self,
        folder: str | PathLike[str],
        *,
        threads: int = 1,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] = ("CPUExecutionProvider",),
        max_sessions: int = 32,
        small: bool = False,
    ) -> None:
        for name, value in (("threads", threads), ("max_sessions", max_sessions)):
            if type(value) is not int or value < 1:
                raise BundleError(f"{name}={value!r} cannot be used; expected a whole number from 1.")
        self.folder = Path(fspath(folder)).absolute()
        self.manifest: Manifest = read_manifest(self.folder)
        self._graphs = self._checked_graphs()
        self._providers, self._max_sessions = list(providers), max_sessions
        self._options = _options(threads, small, self.folder)
        self._sessions: OrderedDict[frozenset[str], onnxruntime.InferenceSession] = OrderedDict()
        self._lock = threading.Lock()
        self._making: dict[frozenset[str], threading.Lock] = {}

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks."""
        return self.manifest.tasks

    @property
    def subsets(self) -> tuple[frozenset[str], ...]:
        """The subsets of tasks that the bundle has a graph for."""
        return tuple(self.manifest.subsets)

    @property
    def loaded(self) -> tuple[frozenset[str], ...]:
        """The subsets that are ready to run, the one that was used last at the end."""
        with self._lock:
            return tuple(self._sessions)

    def run(self, x: Array, tasks: Iterable[str] | str | None = None) -> dict[str, Array]:
        """The outputs of some tasks (all by default) for a batch of inputs."""
        subset = self._subset(tasks)
        array = self._checked_input(x)
        session = self._session(subset)
        names = [task for task in self.manifest.tasks if task in subset.tasks]
        results: list[Array] = session.run(names, {self.manifest.input_name: array})
        return dict(zip(names, results, strict=True))

    def load(self, tasks: Iterable[str] | str | None = None) -> None:
        """Make the session of some tasks ready, so that the first ``run`` does not have to."""
        self._session(self._subset(tasks))

    def _checked_graphs(self) -> dict[frozenset[str], bytes]:
        manifest, found = self.manifest, {}
        check_file(self.folder, manifest.weights)
        stored = stored_tensors(self.folder, manifest.weights)
        for tasks, subset in manifest.subsets.items():
            check_file(self.folder, subset.graph)
            found[tasks] = read_exactly(self.folder, subset.graph.name, subset.graph.bytes)
            check_graph(found[tasks], subset.graph.name, manifest.weights.name, stored)
        return found

    def _subset(self, tasks: Iterable[str] | str | None) -> Subset:
        known = self.manifest.tasks
        chosen = frozenset(known if tasks is None else [tasks] if isinstance(tasks, str) else tasks)
        unknown = sorted(str(task) for task in chosen - set(known))
        if unknown or not chosen:
            what = f"unknown task(s) {', '.join(map(repr, unknown))}" if unknown else "an empty set of tasks"
            raise BundleError(f"The bundle was asked for {what}; it has: {', '.join(known)}.")
        if chosen not in self.manifest.subsets:
            have = ", ".join("+".join(sorted(subset)) for subset in self.manifest.subsets)
            raise BundleError(
                f"The bundle has no graph for {'+'.join(sorted(chosen))}; it has: {have}. Export it with this subset."
            )
        return self.manifest.subsets[chosen]

    def _checked_input(self, x: Array) -> Array:
        array = np.asarray(x)
        expected = self.manifest.input_shape
        if array.ndim != len(expected) + 1 or array.shape[1:] != expected or not len(array):
            shapes = "×".join(map(str, array.shape)) or "()", "×".join(map(str, ("batch", *expected)))
            raise BundleError(f"The input has shape {shapes[0]}; expected {shapes[1]}.")
        if array.dtype == np.float32:
            return array
        if array.dtype.kind != "f":
            raise BundleError(f"The input has type {array.dtype}; expected float32.")
        return array.astype(np.float32)

    def _session(self, subset: Subset) -> onnxruntime.InferenceSession:
        with self._lock:
            if subset.tasks in self._sessions:
                self._sessions.move_to_end(subset.tasks)
                return self._sessions[subset.tasks]
            making = self._making.setdefault(subset.tasks, threading.Lock())
        with making:  # one thread makes a session, the others that want the same one wait for it
            with self._lock:
                if subset.tasks in self._sessions:
                    return self._sessions[subset.tasks]
            session = self._make(subset)
            with self._lock:
                self._sessions[subset.tasks] = session
                while len(self._sessions) > self._max_sessions:
                    self._sessions.popitem(last=False)
            return session

    def _make(self, subset: Subset) -> onnxruntime.InferenceSession:
        try:
            session = onnxruntime.InferenceSession(
                self._graphs[subset.tasks], sess_options=self._options, providers=self._providers
            )
        except Exception as error:  # onnxruntime's errors have no common base
            raise BundleError(f"onnxruntime cannot load {subset.graph.name}: {error}") from error
        names = {output.name for output in session.get_outputs()}
        if names != subset.tasks or [item.name for item in session.get_inputs()] != [self.manifest.input_name]:
            raise BundleError(f"{subset.graph.name} does not compute {'+'.join(sorted(subset.tasks))}.")
        return session


def _options(threads: int, small: bool, folder: Path) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # every session has threads of its own, which would go on spinning after a run, in the way of another subset's
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    if small:  # both the blocked memory layout and packing make copies of the weights for each session
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.add_session_config_entry("session.disable_prepacking", "1")
    return options
