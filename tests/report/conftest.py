"""A browser for the tests of the page; without one they are skipped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pamerge.report import write_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="the tests of the page need playwright")
    if CHROMIUM is None:
        pytest.skip("the tests of the page need a browser: apt-get install chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """``visit(results, **options)`` opens their report; complaints of the page and requests of others fail the test."""
    pages, complaints = [], []

    def open_report(results: list[dict[str, Any]], **options: Any) -> Any:
        path = tmp_path / f"report{len(pages)}.html"
        write_report(results, path)
        size = {"width": 1440, "height": 900}
        page = browser.new_page(viewport=size, reduced_motion="reduce", **options)  # scrolling slowly would take time
        page.set_default_timeout(5000)
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: request.url == path.as_uri() or complaints.append(request.url[:100]))
        page.goto(path.as_uri())
        pages.append(page)
        return page

    yield open_report
    for page in pages:
        page.close()
    assert complaints == []


@pytest.fixture
def screenshots(tmp_path: Path) -> Path:
    """Where screenshots go: the folder that ``PAMERGE_SCREENSHOTS`` names, to look at, or a temporary one."""
    folder = Path(os.environ.get("PAMERGE_SCREENSHOTS", tmp_path / "screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
