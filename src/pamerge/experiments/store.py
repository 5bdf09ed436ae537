"""Results of stages, kept under a hash of everything that they depend on.

A stage that was done is never done again; a changed pruner does not train the networks again; a killed run goes on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from pamerge.network.files import load, save, write_atomically
from pamerge.network.network import MultitaskNetwork
from pamerge.training.checkpoint import load_state, save_state


class Store:
    """A folder of finished stages.

    Args:
        folder: made if it does not exist.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def path(self, stage: str, depends_on: Mapping[str, Any], suffix: str) -> Path:
        """Where the result of a stage is kept."""
        return self.folder / f"{stage}-{digest(depends_on)}{suffix}"

    def json(self, stage: str, depends_on: Mapping[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """A result that is plain JSON."""
        path = self.path(stage, depends_on, ".json")
        if not path.exists():
            write_atomically(path, json.dumps(make(), indent=1).encode())
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found

    def tensors(
        self, stage: str, depends_on: Mapping[str, Any], make: Callable[[], dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        """A result that is tensors, such as a network's weights."""
        path = self.path(stage, depends_on, ".safetensors")
        if not path.exists():
            save_state(path, make(), dict(depends_on))
        loaded = load_state(path)
        assert loaded is not None
        return loaded[0]

    def network(
        self, stage: str, depends_on: Mapping[str, Any], make: Callable[[], tuple[MultitaskNetwork, dict[str, Any]]]
    ) -> tuple[MultitaskNetwork, dict[str, Any]]:
        """A result that is a multitask network and some JSON about it."""
        path, notes = self.path(stage, depends_on, ".pam"), self.path(stage, depends_on, ".json")
        if not (path.exists() and notes.exists()):
            network, found = make()
            save(network, path)
            write_atomically(notes, json.dumps(found, indent=1).encode())  # last: its presence says that both are whole
        return load(path), json.loads(notes.read_text(encoding="utf-8"))


def digest(depends_on: Mapping[str, Any]) -> str:
    """A short hash of plain JSON."""
    text = json.dumps(depends_on, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
