"""Results of stages, kept under a hash of everything that they depend on.

A stage that was done is never done again; a changed pruner does not train the networks again; a killed run goes on.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from pamerge.network.files import load, save, write_atomically
from pamerge.network.network import MultitaskNetwork
from pamerge.training.checkpoint import load_state, save_state


@dataclass(frozen=True)
class Event:
    """Something that happened to a stage.

    Attributes:
        stage: what is being done, in words.
        state: ``"stored"`` if it had been done before.
        seconds: how long it took, once it is done.
    """

    stage: str
    state: Literal["stored", "started", "done"]
    seconds: float = 0.0


Watch = Callable[[Event], None]


class Store:
    """A folder of finished stages.

    Args:
        folder: made when the first stage begins.
        watch: is told what happens.
    """

    def __init__(self, folder: str | Path, watch: Watch | None = None) -> None:
        self.folder = Path(folder)
        self.watch = watch or (lambda event: None)

    def path(self, stage: str, depends_on: Mapping[str, Any], suffix: str) -> Path:
        """Where the result of a stage is kept."""
        return self.folder / f"{stage}-{digest(depends_on)}{suffix}"

    def json(
        self, stage: str, depends_on: Mapping[str, Any], make: Callable[[], dict[str, Any]], title: str = ""
    ) -> dict[str, Any]:
        """A result that is plain JSON; ``title`` is what the stage is called when it is shown."""
        path = self.path(stage, depends_on, ".json")
        with self._stage(title or stage, path.exists()) as stored:
            if not stored:
                write_atomically(path, json.dumps(make(), indent=1).encode())
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return found

    def tensors(
        self, stage: str, depends_on: Mapping[str, Any], make: Callable[[], dict[str, Tensor]], title: str = ""
    ) -> dict[str, Tensor]:
        """A result that is tensors, such as a network's weights."""
        path = self.path(stage, depends_on, ".safetensors")
        with self._stage(title or stage, path.exists()) as stored:
            if not stored:
                save_state(path, make(), dict(depends_on))
            loaded = load_state(path)
            assert loaded is not None
            return loaded[0]

    def network(
        self,
        stage: str,
        depends_on: Mapping[str, Any],
        make: Callable[[], tuple[MultitaskNetwork, dict[str, Any]]],
        title: str = "",
    ) -> tuple[MultitaskNetwork, dict[str, Any]]:
        """A result that is a multitask network and some JSON about it."""
        path, notes = self.path(stage, depends_on, ".pam"), self.path(stage, depends_on, ".json")
        with self._stage(title or stage, self.has_network(stage, depends_on)) as stored:
            if not stored:
                network, found = make()
                save(network, path)
                # last: its presence says that both are whole
                write_atomically(notes, json.dumps(found, indent=1).encode())
            return load(path), json.loads(notes.read_text(encoding="utf-8"))

    def has_network(self, stage: str, depends_on: Mapping[str, Any]) -> bool:
        """Whether :meth:`network` would find a result."""
        return all(self.path(stage, depends_on, suffix).exists() for suffix in (".pam", ".json"))

    @contextmanager
    def _stage(self, title: str, stored: bool) -> Iterator[bool]:
        start = time.perf_counter()
        self.watch(Event(title, "stored" if stored else "started"))
        self.folder.mkdir(parents=True, exist_ok=True)
        yield stored
        if not stored:
            self.watch(Event(title, "done", time.perf_counter() - start))


def digest(depends_on: Mapping[str, Any]) -> str:
    """A short hash of plain JSON."""
    text = json.dumps(depends_on, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
