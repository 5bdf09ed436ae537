"""The page: valid, on its own, safe with any name, small, and complete about what it lacks."""

from __future__ import annotations

import copy
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from report.samples import sample

from pamerge import PamergeError
from pamerge.experiments.metrics import gain
from pamerge.report import write_report
from pamerge.report.page import page
from pamerge.report.summary import runs_of

VOID = {"meta", "link", "br", "wbr", "input", "hr", "img"}


class Reader(HTMLParser):
    """Checks that elements are nested, and collects what a test wants to know."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, text: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(text)

    def embedded(self) -> dict[str, Any]:
        return json.loads(self.scripts[0])


def renamed(result: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    """The result with another name for a task, wherever it stands."""

    def change(content: Any) -> Any:
        if isinstance(content, dict):
            return {change(key): change(value) for key, value in content.items()}
        if isinstance(content, list):
            return [change(value) for value in content]
        return (
            "+".join(new if part == old else part for part in content.split("+"))
            if isinstance(content, str)
            else content
        )

    return change(json.loads(json.dumps(result)))


def test_the_page_is_well_formed() -> None:
    text = page([sample(2)])
    reader = Reader(text)
    assert text.startswith("<!doctype html>")
    names = [attributes["id"] for _, attributes in reader.elements if "id" in attributes]
    assert len(names) == len(set(names))
    assert ("html", {"lang": "en"}) in reader.elements
    assert {"title", "main", "header", "nav", "h1"} <= {tag for tag, _ in reader.elements}
    for tag, attributes in reader.elements:
        if tag == "section":
            assert attributes["aria-labelledby"] in names


def test_nothing_is_loaded_from_anywhere() -> None:
    text = page([sample(2)])
    assert "http:" not in text
    assert "https:" not in text
    assert "//" not in "".join(value or "" for _, attributes in Reader(text).elements for value in attributes.values())
    assert "default-src 'none'" in text
    assert not {"img", "iframe", "object", "embed"} & {tag for tag, _ in Reader(text).elements}


@pytest.mark.parametrize("name", ["</script><script>alert(1)</script>", "<!--<script>", "a&b\u2028'\"", "@@SCRIPT@@"])
def test_any_name_is_embedded_as_text(name: str) -> None:
    result = renamed(sample(2), "age", name) | {"experiment": name}
    reader = Reader(page([result]))
    assert [tag for tag, _ in reader.elements].count("script") == 2
    run = reader.embedded()["runs"][0]
    assert run["tasks"] == [name, "gender"]
    assert run["experiment"] == name


def test_results_are_in_the_page_as_they_are() -> None:
    run = Reader(page([sample(2)])).embedded()["runs"][0]
    assert run["seeds"] == [json.loads(json.dumps(sample(2)))]
    costs = {name: scheme["flops"] for name, scheme in sample(2)["schemes"].items()}
    for combination, (mean, spread) in run["gains"]["pam"]["mtz"]["each"].items():
        assert mean == pytest.approx(gain(costs["mtz"], costs["pam"]).each[combination])
        assert spread is None


def test_seeds_are_put_together_and_pruners_kept_apart() -> None:
    results = [sample(2, 1), sample(2), sample(2) | {"pruner": "vib"}]
    first, second = runs_of(results)
    assert [result["seed"] for result in first.results] == [0, 1]
    assert second.pruner == "vib"
    mean, spread = first.flops("pam")["age"]
    values = [sample(2, seed)["schemes"]["pam"]["flops"]["age"] for seed in (0, 1)]
    assert mean == sum(values) / 2
    assert spread == pytest.approx(abs(values[0] - values[1]) / 2**0.5)


def test_five_tasks_stay_below_three_megabytes() -> None:
    """Three seeds of a network with 16 wide layers, 50 steps of pruning."""
    result = copy.deepcopy(sample(5))
    for scheme in result["schemes"].values():
        scheme["groups"] = {f"layer{i}": scheme["groups"]["fc3"] for i in range(16)}
        scheme["path"] = [scheme["path"][0]] * 50
    information = result["schemes"]["pam"]["information"]
    assert len(information["layers"]["fc3"]["traces"]["age"]["taken"]) == 200
    information["layers"] = {f"layer{i}": information["layers"]["fc3"] for i in range(16)}
    assert len(page([result | {"seed": seed} for seed in range(3)]).encode()) < 3_000_000


def test_numbers_that_json_does_not_know_become_null() -> None:
    result = copy.deepcopy(sample(2))
    result["schemes"]["pam"]["metric"]["age"] = float("nan")  # training that diverged
    run = Reader(page([result, sample(2, 1)])).embedded()["runs"][0]
    assert run["seeds"][0]["schemes"]["pam"]["metric"]["age"] is None
    assert run["metric"]["pam"]["age"] == [None, None]
    assert run["metric"]["pam"]["gender"][1] > 0


def test_the_same_results_give_the_same_page(tmp_path: Path) -> None:
    write_report([sample(2)], tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page([sample(2)])


def test_mistakes_in_results_are_said() -> None:
    with pytest.raises(PamergeError, match="no results to report"):
        page([])
    with pytest.raises(PamergeError, match="Seed 0 of faces-2-tasks with taylor is there twice"):
        page([sample(2), sample(2)])
    with pytest.raises(PamergeError, match="Result 1 is not a result of an experiment: it lacks network, pruner"):
        page([{"experiment": "faces"}])
    broken = copy.deepcopy(sample(2))
    del broken["schemes"]["mtz"]["flops"]["gender"]
    with pytest.raises(PamergeError, match="the flops of its scheme mtz has no value for gender"):
        page([broken])
