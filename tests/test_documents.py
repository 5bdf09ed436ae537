"""Every Python block of the README and of the docs runs, block after block of a page in one namespace.

A block of text that follows a Python block directly is what that block prints.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from test_layout_of_the_code import ORDER

import pamerge
from pamerge.graph import ops as op_table

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n+```text\n(?P<printed>.*?)^```)?", re.M | re.S)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def script(name: str) -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "scripts")
        return importlib.import_module(name)


@pytest.fixture
def _op_table_kept() -> Iterator[None]:
    """Pages may register operations."""
    before = dict(op_table._RULES)
    yield
    op_table._RULES.clear()
    op_table._RULES.update(before)


@pytest.mark.usefixtures("_op_table_kept")
@pytest.mark.parametrize("page", [page for page in PAGES if BLOCK.search(page.read_text())], ids=name_of)
def test_the_code_of_a_page_runs_and_prints_what_the_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": page.stem}
    text = page.read_text()
    for block in BLOCK.finditer(text):
        line = text[: block.start("code")].count("\n")
        code = compile("\n" * line + block["code"], os.fspath(page), "exec", dont_inherit=True)
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(code, namespace)
        if block["printed"] is not None:
            assert lines(output.getvalue()) == lines(block["printed"])


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!http|#|mailto)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{name_of(page)} links to {target}"


def test_code_is_marked_as_python_so_that_it_is_run() -> None:
    """Other blocks are what is typed into a terminal, what is printed, and configuration."""
    for page in PAGES:
        opened = re.findall(r"^```(.*)$", page.read_text(), re.M)[::2]
        assert set(opened) <= {"python", "text", "sh", "toml"}, f"{name_of(page)} has blocks of {set(opened)}"


def test_the_files_that_the_docs_name_exist() -> None:
    for page in PAGES:
        for path in re.findall(r"`((?:src|tests|scripts|results|docs|benchmarks)/[\w./-]+)`", page.read_text()):
            assert (ROOT / path).exists(), f"{name_of(page)} names {path}"


def test_pictures_have_a_text_for_those_who_cannot_see_them() -> None:
    for page in PAGES:
        for alternative, target in re.findall(r"!\[(.*?)\]\((.*?)\)", page.read_text()):
            assert len(alternative) > 20, f"{name_of(page)}: {target}"


# -- what scripts make -------------------------------------------------------------------------------------------------


def test_the_numbers_of_the_theory_are_those_that_were_measured() -> None:
    table = script("theory_table")
    page, found = table.PAGE.read_text(), json.loads(table.RESULTS.read_text())
    assert found["settings"] == table.SETTINGS
    assert found["seeds"] == list(table.SEEDS)
    for name, text in table.tables(found).items():
        first, last = (mark.format(name=name) for mark in table.MARKS)
        shown = page.split(first)[1].split(last)[0]
        assert shown.strip() == text, "run scripts/theory_table.py --table"


def test_what_the_theory_says_about_its_numbers_is_so() -> None:
    table = script("theory_table")
    separate, pam, shared = table.SCHEMES
    found = json.loads(table.RESULTS.read_text())["runs"]

    def mean(scheme: str, layer: str, condition: str) -> float:
        return sum(run["schemes"][scheme]["fine-tuned"]["layers"][layer][condition] for run in found) / len(found)

    for layer in ("conv1", "conv2", "fc3", "fc4"):
        for task in ("a", "b"):
            assert mean(pam, layer, f"misplaced_{task}") < mean(separate, layer, f"misplaced_{task}")
            assert mean(pam, layer, f"relevant_{task}") < mean(separate, layer, f"relevant_{task}")
            assert mean(pam, layer, f"private_{task}") < 0.6 * mean(shared, layer, f"private_{task}")
            assert mean(separate, layer, f"private_{task}") == mean(shared, layer, f"misplaced_{task}") == 0
            assert abs(mean(pam, layer, "co_information")) < 0.1 * mean(pam, layer, f"relevant_{task}")
    assert max(mean(pam, "fc4", "private_a"), mean(pam, "fc4", "private_b")) < 0.05


def test_the_pictures_are_those_that_the_script_draws() -> None:
    images = script("docs_images")
    drawn = images.pictures(json.loads(images.RESULTS.read_text()))
    text = "".join(path.read_text() for path in DOCS.rglob("*.md"))
    assert all(f"images/{path.name}" in text for path in images.IMAGES.iterdir())
    for name, picture in drawn.items():
        assert (images.IMAGES / name).read_text() == picture, "run scripts/docs_images.py"


def test_the_tree_in_the_architecture_is_in_the_order_of_imports() -> None:
    tree = (DOCS / "architecture.md").read_text().split("```text\nsrc/pamerge/\n")[1].split("runtime/")[0]
    assert re.findall(r"^  (\w+)", tree, re.M) == [part for part in ORDER if not part.startswith("_")]


def test_the_reference_has_everything_that_is_public() -> None:
    listed = re.findall(r"^::: ([\w.]+)$", (DOCS / "reference.md").read_text(), re.M)
    found = []
    for module, _, name in (path.rpartition(".") for path in listed):
        found.append(getattr(importlib.import_module(module), name))
    missing = [name for name in pamerge.__all__ if name != "__version__" and getattr(pamerge, name) not in found]
    assert not missing


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the site is built where its tools are installed: make docs")
    pytest.importorskip("mkdocstrings", reason="the site is built where its tools are installed: make docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    for page in tmp_path.rglob("*.html"):  # nothing is loaded from elsewhere
        loaded = re.findall(r'<(?:script|img|iframe)[^>]*\bsrc="([^"]+)"', page.read_text())
        loaded += re.findall(r'<link[^>]*rel="(?:stylesheet|icon|preconnect)"[^>]*href="([^"]+)"', page.read_text())
        assert not [address for address in loaded if address.startswith(("http", "//"))], page.name
