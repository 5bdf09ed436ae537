"""Every Python block of the README and of the docs runs, block after block of a page in one namespace."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from pamerge.demo import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[tuple[int, str]]:
    """Line number and text of each Python block."""
    text = page.read_text()
    return [(text[: m.start(1)].count("\n"), m[1]) for m in re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S)]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": page.stem}
    for line, code in blocks(page):
        exec(compile("\n" * line + code, os.fspath(page), "exec"), namespace)


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!http|#|mailto)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_readme_shows_what_the_demo_prints(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    printed = [line.rstrip() for line in capsys.readouterr().out.strip("\n").splitlines()]
    shown = re.search(r"<!-- demo -->\n```text\n(.*?)```\n<!-- /demo -->", PAGES[0].read_text(), re.S)
    assert shown is not None
    assert [line.rstrip() for line in shown[1].strip("\n").splitlines()] == printed
