"""The page in a browser: what it shows is what the results say, for a mouse, a keyboard and a screen reader."""

from __future__ import annotations

import copy
import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from report.samples import sample
from report.test_page import renamed

from pamerge.experiments.metrics import combination_metric, gain
from pamerge.tasks import TaskSet

BOTH = pytest.mark.parametrize("tasks", [2, 5])


def value(page: Any, selector: str) -> float:
    """The number behind what an element shows."""
    return float(page.locator(selector).get_attribute("value"))


def every_subset(tasks: list[str]) -> list[tuple[str, frozenset[str]]]:
    """Toggles that lead from all tasks through every subset, the empty one too, with the subset after each."""
    on, steps = set(tasks), []
    for number in range(1, 2 ** len(tasks)):
        task = tasks[(number & -number).bit_length() - 1]  # a Gray code: one toggle at a time
        on ^= {task}
        steps.append((task, frozenset(on)))
    return steps


@BOTH
def test_toggles_show_cost_metric_and_active_groups_of_every_subset(visit, tasks: int) -> None:
    result = sample(tasks)
    page = visit([result])
    scheme = result["schemes"]["pam"]
    assert value(page, "#chosen-flops") == scheme["flops"][str(TaskSet(result["tasks"]))]
    for task, on in every_subset(result["tasks"]):
        page.locator(f"[data-task={task}]").click()
        shown = page.evaluate(
            """() => ({
                flops: document.querySelector("#chosen-flops").value,
                metric: document.querySelector("#chosen-metric").value,
                segments: [...document.querySelectorAll("#network .segment")]
                    .map(segment => [segment.dataset.group, !segment.classList.contains("off")]),
                layers: [...document.querySelectorAll("#network .layer-flops")].map(d => Number(d.value)),
            })"""
        )
        assert float(shown["flops"]) == sum(shown["layers"]) == (scheme["flops"][str(TaskSet(on))] if on else 0)
        if on:
            assert float(shown["metric"]) == pytest.approx(combination_metric(scheme["metric"], str(TaskSet(on))))
        assert len(shown["segments"]) == sum(len(sizes) for sizes in scheme["groups"].values())
        assert all(lit == bool(TaskSet.parse(group) & on) for group, lit in shown["segments"])


@BOTH
def test_every_scheme_can_be_chosen(visit, tasks: int) -> None:
    result = sample(tasks)
    page = visit([result])
    page.locator(f"[data-task={result['tasks'][1]}]").click()
    name = str(TaskSet(result["tasks"]) - {result["tasks"][1]})
    for scheme, found in result["schemes"].items():
        page.locator(f"input[value={scheme}]").click()
        assert value(page, "#chosen-flops") == found["flops"][name]
        assert value(page, f"[data-cost={scheme}] data") == found["flops"][name]
        assert page.locator("#network li .bar").count() == len(found["groups"])


@BOTH
def test_the_table_has_every_combination_and_sorts(visit, tasks: int) -> None:
    result = sample(tasks)
    page = visit([result])
    schemes = list(result["schemes"])
    rows = page.locator("#combinations tbody tr")
    assert rows.count() == 2**tasks - 1
    read = """rows => rows.map(
        row => [row.dataset.combination, [...row.querySelectorAll("data")].map(d => Number(d.value))])"""
    for name, numbers in rows.evaluate_all(read):
        metrics = [combination_metric(result["schemes"][s]["metric"], name) for s in schemes]
        assert numbers == pytest.approx([*metrics, *(result["schemes"][s]["flops"][name] for s in schemes)])
    column = page.locator("#combinations th button", has_text="FLOPs of pam")
    for direction, is_down in (("ascending", False), ("descending", True)):
        column.press("Enter")
        assert column.evaluate("button => button === document.activeElement")
        assert column.locator("xpath=..").get_attribute("aria-sort") == direction
        costs = [numbers[-1] for _, numbers in rows.evaluate_all(read)]
        assert costs == sorted(costs, reverse=is_down)


@BOTH
def test_gains_are_those_of_the_results(visit, tasks: int) -> None:
    result = sample(tasks)
    page = visit([result])
    costs = {name: scheme["flops"] for name, scheme in result["schemes"].items()}
    found = [gain(costs[baseline], costs["pam"]) for baseline in ("separate", "mtz")]
    shown = page.locator("#gains .block table data").evaluate_all("all => all.map(d => Number(d.value))")
    assert shown == pytest.approx([number for one in found for number in (one.average, one.peak)])
    page.select_option("#gain-of", "separate")
    shown = page.locator("#gains details data").evaluate_all("all => all.map(d => Number(d.value))")
    found = [gain(costs[baseline], costs["separate"]) for baseline in ("mtz", "pam")]
    assert shown == pytest.approx([one.each[name] for name in costs["pam"] for one in found])


@BOTH
def test_the_slider_shows_the_groups_of_an_alpha(visit, tasks: int) -> None:
    result = sample(tasks)
    information = result["schemes"]["pam"]["information"]
    page = visit([result])
    slider = page.locator("#alpha")
    assert slider.get_attribute("aria-valuetext") == "α = 0.1"
    place = information["alphas"].index(0.1)
    for key, move in (("ArrowLeft", -1), ("Home", None), ("ArrowRight", 1), ("End", None)):
        slider.press(key)
        place = {"Home": 0, "End": len(information["alphas"]) - 1}.get(key, place + (move or 0))
        for name, layer in information["layers"].items():
            row = page.locator(f"#alpha-groups [data-layer='{name}']")
            exclusive = {task: counts[place] for task, counts in layer["exclusive"].items()}
            assert json.loads(row.get_attribute("data-exclusive")) == exclusive
            shared = sum(layer["origins"].values()) - sum(exclusive.values())
            assert int(row.get_attribute("data-shared")) == shared
    assert slider.get_attribute("aria-valuetext") == "α = 1"
    page.get_by_role("button", name="The α that was used").click()
    assert "the value that was used" in page.locator("#alpha-text").inner_text()
    page.select_option("#layer", "fc4")
    assert page.locator("#traces svg").count() == tasks
    assert f"of {84 * tasks} neurons" in page.locator("#traces").inner_text()


def test_several_seeds_give_mean_and_spread_and_one_of_them_the_details(visit) -> None:
    results = [sample(2, seed) for seed in range(3)]
    page = visit(results)
    costs = [result["schemes"]["pam"]["flops"]["age+gender"] for result in results]
    cell = page.locator("[data-cost=pam] data")
    assert float(cell.get_attribute("value")) == pytest.approx(statistics.fmean(costs))
    assert f"± {statistics.stdev(costs) / 1e3:.2g}" in cell.inner_text()
    for seed, cost in enumerate(costs):
        page.select_option("#seed", str(seed))
        assert value(page, "#chosen-flops") == cost
        assert f"Layers of pam, seed {seed}" in page.locator("#network").inner_text()


def test_another_run_can_be_chosen(visit) -> None:
    page = visit([sample(5), sample(2)])
    assert page.locator("#toggles input").count() == 5
    page.select_option("#run", index=1)
    assert page.locator("#toggles input").count() == 2
    assert page.locator("h1").inner_text() == "faces-2-tasks"
    assert value(page, "#chosen-flops") == sample(2)["schemes"]["pam"]["flops"]["age+gender"]


def test_everything_can_be_done_with_the_keyboard(visit) -> None:
    page = visit([sample(2)])
    flops = sample(2)["schemes"]["pam"]["flops"]
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.dataset.task") == "age"
    page.keyboard.press("Space")
    assert value(page, "#chosen-flops") == flops["gender"]
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.value") == "mtz"
    assert value(page, "#chosen-flops") == sample(2)["schemes"]["mtz"]["flops"]["gender"]


def test_what_results_lack_is_said(visit) -> None:
    result = copy.deepcopy(sample(2))
    for key in ("environment", "original_flops", "reference", "budget"):
        del result[key]
    result["schemes"] = {name: {key: s[key] for key in ("flops", "metric")} for name, s in result["schemes"].items()}
    page = visit([result])
    for section in ("tasks", "path", "sharing", "information", "effort"):
        assert page.locator(f"#{section} .missing").count() == 1, section
    page.locator("[data-task=age]").click()
    assert value(page, "#chosen-flops") == result["schemes"]["pam"]["flops"]["gender"]
    del result["schemes"]["separate"], result["schemes"]["mtz"]
    assert "one scheme only" in visit([result]).locator("#gains").inner_text()


def test_a_metric_that_is_no_number_is_a_dash(visit) -> None:
    result = copy.deepcopy(sample(2))
    result["schemes"]["pam"]["metric"]["age"] = float("nan")
    page = visit([result, sample(2, 1)])
    assert page.locator("#chosen-metric").inner_text() == "–"
    assert page.locator("[data-combination=age] data").nth(2).inner_text().startswith("–")


def test_a_hostile_name_stays_text(visit) -> None:
    name = "</script><img src=x onerror=alert(1)>"
    page = visit([renamed(sample(2), "age", name) | {"experiment": name}])
    assert page.locator("h1").inner_text() == name
    assert page.locator("img").count() == 0
    assert page.locator("#toggles").inner_text().splitlines()[1] == name


@pytest.mark.parametrize("scheme", ["light", "dark"])
@BOTH
def test_no_serious_barriers_and_a_look_at_two_widths(visit, screenshots: Path, tasks: int, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = visit([sample(tasks)], color_scheme=scheme)
    page.locator(f"[data-task={sample(tasks)['tasks'][0]}]").click()
    if tasks == 2:  # large tables take axe seconds, and are no different
        page.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
    for width in (390, 1440):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") == width, "the page scrolls sideways"
        page.screenshot(path=screenshots / f"{tasks}-tasks-{scheme}-{width}.png", full_page=True)
        if (tasks, width) not in ((2, 390), (5, 1440)):
            continue  # axe takes seconds: each width once
        found = axe.run(page).response["violations"]
        serious = [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")]
        assert serious == []
