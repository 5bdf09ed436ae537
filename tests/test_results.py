"""Tables in the documents are what the results say."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def script() -> Iterator[Callable[[str], ModuleType]]:
    """A module of the folder of scripts, by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "scripts")
        yield importlib.import_module


@pytest.fixture(scope="module")
def tables(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("result_tables")


@pytest.mark.parametrize(
    ("document", "names"),
    [
        ("README.md", ["demo output", "demo table", "gains in short"]),
        (
            "docs/comparison.md",
            [
                "gains",
                "combinations",
                "fairness",
                "tries",
                "efforts",
                "chance",
                "relatedness",
                "inclusion",
                "conditions",
                "problem 1",
            ],
        ),
        ("docs/deployment.md", ["latency"]),
    ],
)
def test_tables_are_made_of_the_results(tables: ModuleType, document: str, names: list[str]) -> None:
    text = (ROOT / document).read_text()
    for name in names:
        assert f"<!-- {name} -->\n" in text
    assert text == tables.with_tables(text)


def test_the_chart_of_costs_is_made_of_the_results(tables: ModuleType) -> None:
    assert tables.CHART.read_text() == tables.costs_chart(), "run scripts/result_tables.py"


def test_the_chart_of_ablations_is_made_of_the_results(script: Callable[[str], ModuleType]) -> None:
    ablations = script("ablations")
    drawn = ablations.chart(json.loads(ablations.RESULTS.read_text()))
    assert ablations.CHART.read_text() == drawn, "run scripts/ablations.py --chart"
