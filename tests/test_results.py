"""Tables in the documents are what the results say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("result_tables", ROOT / "scripts" / "result_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("document", "names"),
    [
        ("README.md", ["demo output", "demo table", "gains"]),
        ("docs/comparison.md", ["gains", "combinations", "fairness", "tries", "relatedness", "inclusion"]),
        ("docs/deployment.md", ["latency"]),
    ],
)
def test_tables_are_made_of_the_results(tables: ModuleType, document: str, names: list[str]) -> None:
    text = (ROOT / document).read_text()
    for name in names:
        assert f"<!-- {name} -->\n" in text
    assert text == tables.with_tables(text)


def test_the_chart_is_made_of_the_results(tables: ModuleType) -> None:
    assert tables.CHART.read_text() == tables.costs_chart(), "run scripts/result_tables.py"
