"""The page about networks is true: its code runs and prints what it shows, and its tables are up to date."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from pamerge.graph import ops as table

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "networks.md").read_text()


@pytest.fixture(autouse=True)
def _forget_what_the_page_registers() -> Iterator[None]:
    before = dict(table._RULES)
    yield
    table._RULES.clear()
    table._RULES.update(before)


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def test_the_code_runs_and_prints_what_the_page_shows() -> None:
    blocks = re.findall(r"```(python|text)\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) > 5
    names: dict[str, object] = {}
    printed = ""
    for language, block in blocks:
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(compile(block, "docs/networks.md", "exec"), names)
            printed = output.getvalue()
        else:
            assert lines(printed) == lines(block)


def test_the_table_of_operations_is_the_op_table() -> None:
    assert script("op_table").table() in PAGE, "run scripts/op_table.py"


def test_the_table_of_architectures_is_what_the_script_found() -> None:
    found = json.loads((ROOT / "results" / "architectures.json").read_text())
    assert found["tried"] >= 15
    assert found["ok"] >= 12
    assert set(script("architecture_table").ARCHITECTURES) == {row["architecture"] for row in found["architectures"]}
    for row in found["architectures"]:
        (shown,) = (line for line in PAGE.splitlines() if line.startswith(f"| `{row['architecture']}` |"))
        assert shown.endswith(f"| {row['result']} |"), "run scripts/architecture_table.py"
