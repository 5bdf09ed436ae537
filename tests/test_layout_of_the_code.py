"""The folder tree is the architecture: a module imports only from those above it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "pamerge"
ORDER = [
    "errors", "tasks", "graph", "network", "information", "training", "merging", "pruning", "tuning", "deploy", "zoo",
    "data", "experiments", "report", "cli", "__init__", "__main__",
]  # fmt: skip


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_parts(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "pamerge":
            names = [node.module] if "." in node.module else [f"pamerge.{alias.name}" for alias in node.names]
            found |= {name.split(".")[1] for name in names if len(name.split(".")) > 1}
    return {name for name in found if name in ORDER}


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_one_way(path: Path) -> None:
    part = part_of(path)
    assert part in ORDER, f"{part} has no place in the order of imports"
    below = {name for name in imported_parts(path) if ORDER.index(name) > ORDER.index(part)}
    assert not below, f"{path.name} imports from {below}, which stand below {part}"
