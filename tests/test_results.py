"""Tables in the documents are what the results say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_readmes_table_of_the_demo_is_made_of_its_results() -> None:
    spec = importlib.util.spec_from_file_location("demo_table", ROOT / "scripts" / "demo_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    readme = (ROOT / "README.md").read_text()
    assert module.MARKS[0] in readme
    assert readme == module.with_table(readme)
