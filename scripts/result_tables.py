"""The tables of results in README, docs/comparison.md and docs/deployment.md, and the chart of costs.

    python scripts/result_tables.py            # makes them anew from results/
    python scripts/result_tables.py RUN …      # first copies the results of runs there

A run is the folder of ``pamerge demo --seed SEED --out RUN`` (the README has seeds 0 to 3) or of ``pamerge run
configs/NAME.toml --out RUN``. Its results are kept in results/NAME, without what only the report shows. The paper's own
numbers are in results/paper.json.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import study_tables as studies
from scipy.stats import spearmanr
from study import spread, svg

from pamerge.cli.show import print_table
from pamerge.experiments.metrics import expected_cost, gain
from pamerge.experiments.tables import combination_rows, gain_rows, markdown

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
ONLY_IN_THE_REPORT = ("information", "path", "merging", "groups", "layer_flops", "layers", "probes")
BASELINES = ("separate", "mtz")
EXPERIMENTS = {
    "lenet5-fashion": ("LeNet-5, Fashion-MNIST canvases", "LeNet-5, Fashion-MNIST"),
    "lenet5-fashion-vib": ("LeNet-5, Fashion-MNIST canvases", "LeNet-5, Fashion-MNIST"),
    "vgg16-lfw-quarter": ("VGG-16 at a quarter of its width, LFW faces", "VGG-16, CelebA"),
    "vgg16-lfw-quarter-long": ("VGG-16 at a quarter, LFW faces, twice the effort", "VGG-16, CelebA"),
    "vgg16-lfw-quarter-vib": ("VGG-16 at a quarter of its width, LFW faces", "VGG-16, CelebA"),
    "vgg16-lfw-quarter-vib-long": ("VGG-16 at a quarter, LFW faces, twice the effort", "VGG-16, CelebA"),
    "vgg16-lfw-five-eighth": ("VGG-16 at an eighth of its width, LFW faces, five tasks", "VGG-16, LFW"),
    "vgg16-lfw-five-eighth-wide": ("VGG-16 at an eighth, LFW faces, five tasks, 2.5 points", "VGG-16, LFW"),
    "resnet18-lfw-half": ("ResNet-18 at half of its width, LFW faces", "ResNet-18, CelebA"),
    "resnet34-lfw-half": ("ResNet-34 at half of its width, LFW faces", "ResNet-34, CelebA"),
}
"""The name of a configuration: what it is, and the paper's experiment that it stands beside."""
EARLIER = {
    "lenet5-fashion",
    "lenet5-fashion-vib",
    "vgg16-lfw-quarter",
    "vgg16-lfw-quarter-long",
    "vgg16-lfw-quarter-vib",
    "vgg16-lfw-quarter-vib-long",
    "vgg16-lfw-five-eighth",
    "vgg16-lfw-five-eighth-wide",
    "resnet18-lfw-half",
    "resnet34-lfw-half",
}
"""Experiments that were measured with an earlier loop of pruning."""
EARLIER_MARK = " *"
PRUNERS = {"vib": "VIB (P1)", "taylor": "Taylor (P2)"}
CHART = ROOT / "docs" / "images" / "costs.svg"
COLOURS = {"separate": "#9498a0", "mtz": "#efb118", "pam": "#4269d0"}

Results = Sequence[Mapping[str, Any]]
"""Results of one experiment and pruner, one for each seed."""


def keep(folder: Path) -> None:
    """Copy the results of a run."""
    for path in sorted((folder / "results").glob("*.json")):
        result = json.loads(path.read_text())
        for scheme in result["schemes"].values():
            for key in ONLY_IN_THE_REPORT:
                scheme.pop(key, None)
        kept = RESULTS / result["experiment"]
        kept.mkdir(parents=True, exist_ok=True)
        (kept / path.name).write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def kept(experiment: str, pruner: str) -> Results:
    """The results of all seeds."""
    paths = sorted((RESULTS / experiment).glob(f"{experiment}-{pruner}-seed*.json"))
    return [json.loads(path.read_text()) for path in paths]


def with_tables(text: str) -> str:
    """A document with every table between its marks."""
    for name, make in TABLES.items():
        start, end = (re.escape(mark) for mark in (f"<!-- {name} -->\n", f"<!-- end of {name} -->"))
        text = re.sub(f"({start}).*?({end})", lambda m, make=make: f"{m[1]}{make()}\n{m[2]}", text, flags=re.S)
    return text


# -- the demo ----------------------------------------------------------------------------------------------------------


def demo_table() -> str:
    """Mean and spread over the seeds, and in how many of them PAM costs less."""
    results = kept("demo", "taylor")
    return "\n\n".join(
        [
            markdown(combination_rows(results)),
            markdown(gain_rows(results, "pam")),
            f"The average gain is at least 1 {_wins(results)}.",
        ]
    )


def _wins(results: Results) -> str:
    each = {baseline: [_gain(result, baseline).average for result in results] for baseline in BASELINES}
    wins = (f"over {b} in {sum(value >= 1 for value in gains)} of {len(gains)} seeds" for b, gains in each.items())
    return " and ".join(wins)


def demo_output() -> str:
    """What the demo prints for its first seed."""
    result = kept("demo", "taylor")[0]
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        print_table(combination_rows([result]), "demo, pruned with taylor")
        print_table(gain_rows([result], "pam"))
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    return "```text\n" + "\n".join(line for line in lines if line) + "\n```"


# -- beside the paper --------------------------------------------------------------------------------------------------


def gains_table() -> str:
    """A row for each experiment, pruner and variant of PAM: gains, ours and the paper's."""
    head = ["experiment", "pruner", "scheme", "seeds", "over separate", "paper", "limit", "over MTZ", "paper"]
    rows = [[*head, "expected cost ÷ better baseline", "worst combination ÷ better baseline"]]
    for title, pruner, results, paper in _measured():
        theirs = {baseline: f"{_paper_gain(paper, baseline):.2f}" for baseline in BASELINES}
        for scheme in [name for name in results[0]["schemes"] if name not in BASELINES]:
            ours = {b: spread(_gain(result, b, scheme).average for result in results) for b in BASELINES}
            rows.append(
                [
                    title,
                    PRUNERS[pruner],
                    scheme,
                    str(len(results)),
                    ours["separate"],
                    theirs["separate"],
                    spread(map(_limit, results)),
                    ours["mtz"],
                    theirs["mtz"],
                    f"{_against_better(results, scheme):.2f}",
                    f"{_worst_combination(results, scheme):.2f}",
                ]
            )
    return markdown(rows)


def short_gains_table() -> str:
    """The same without variants of PAM, and without what needs explaining."""
    head = ["experiment", "pruner", "over separate (paper)", "over MTZ (paper)"]
    rows = [[*head, "expected cost ÷ better baseline", "worst combination ÷ better baseline"]]
    for title, pruner, results, paper in _measured():
        gains = (
            f"{spread(_gain(result, baseline).average for result in results)} ({_paper_gain(paper, baseline):.2f})"
            for baseline in BASELINES
        )
        better = (f"{ratio(results, 'pam'):.2f}" for ratio in (_against_better, _worst_combination))
        rows.append([title, PRUNERS[pruner], *gains, *better])
    return markdown(rows)


def combinations_table() -> str:
    """A row for each combination of tasks: accuracy, MFLOPs and gains beside the paper's."""
    parts = []
    for title, pruner, results, paper in _measured():
        head, *body = combination_rows(results)
        rows = [[*head, "gain over separate (paper)", "over mtz (paper)"]]
        for row in body:
            gains = []
            for baseline in BASELINES:
                ours = spread(_gain(result, baseline).each[row[0]] for result in results)
                theirs = paper[row[0]]["mflops"]
                gains.append(f"{ours} ({theirs[baseline] / theirs['pam']:.2f})")
            rows.append([*row, *gains])
        parts += [f"**{title}, {PRUNERS[pruner]}**", markdown(rows)]
    return "\n\n".join(parts)


def costs_chart() -> str:
    """An SVG, a panel for each experiment and pruner: what combinations cost, with a dot for each seed."""
    from matplotlib.figure import Figure

    measured = list(_measured())
    columns = min(3, len(measured))
    rows = math.ceil(len(measured) / columns)
    figure = Figure(figsize=(3.6 * columns, 3.0 * rows + 0.3), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for left in panels[len(measured) :]:
        left.set_axis_off()
    for axes, (title, pruner, results, _) in zip(panels, measured, strict=False):
        shown = _in_a_chart(list(results[0]["schemes"]["pam"]["flops"]))
        for offset, (scheme, colour) in enumerate(COLOURS.items(), start=-1):
            places = [index + 0.27 * offset for index in range(len(shown))]
            costs = [
                [statistics.fmean(r["schemes"][scheme]["flops"][tasks] for tasks in together) / 1e6 for r in results]
                for together in shown.values()
            ]
            axes.bar(places, [statistics.fmean(each) for each in costs], 0.25, color=colour, label=scheme)
            for place, each in zip(places, costs, strict=True):
                axes.plot([place] * len(each), each, ".", color="black", markersize=3)
        axes.set_title(f"{title.replace(', ', chr(10))}\n{PRUNERS[pruner]}", fontsize=9)
        axes.set_xticks(range(len(shown)), shown)
        axes.set_ylabel("MFLOPs")
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(COLOURS), frameon=False)
    return svg(figure)


def _in_a_chart(combinations: Sequence[str]) -> dict[str, list[str]]:
    """Each combination for itself, or all those of as many tasks together if there are too many."""
    if len(combinations) <= 7:
        return {tasks: [tasks] for tasks in combinations}
    found: dict[str, list[str]] = {}
    for tasks in combinations:
        number = tasks.count("+") + 1
        found.setdefault(f"{number} task{'s' * (number > 1)}", []).append(tasks)
    return found


def fairness_table() -> str:
    """What each scheme was given and used, and whether the baselines are sane."""
    rows = [
        ["experiment", "pruner", "scheme", "task-batches", "minutes", "MFLOPs of the originals", "all ÷ separate all"]
    ]
    for title, pruner, results, _ in _measured():
        for scheme in results[0]["schemes"]:
            found = [result["schemes"][scheme] for result in results]
            everything = "+".join(results[0]["tasks"])
            rows.append(
                [
                    title,
                    PRUNERS[pruner],
                    scheme,
                    spread((run["task_batches"] for run in found), "{:.0f}"),
                    spread((run["seconds"] / 60 for run in found), "{:.0f}"),
                    spread((sum(result["original_flops"].values()) / 1e6 for result in results), "{:.1f}"),
                    spread(
                        run["flops"][everything] / result["schemes"]["separate"]["flops"][everything]
                        for run, result in zip(found, results, strict=True)
                    ),
                ]
            )
    peak = max(result["environment"]["peak_gib"] for _, _, results, _ in _measured() for result in results)
    return f"{markdown(rows)}\n\nNo process needed more than {peak:.1f} GiB."


def tries_table() -> str:
    """What every try of a scheme costs, where schemes were tried with several options."""
    parts = []
    for title, pruner, results, _ in _measured():
        tasks = results[0]["tasks"]
        shown = [*tasks, "+".join(tasks)]
        whole = "first" not in results[0]["schemes"]["separate"]  # otherwise what was lost by merging is not told
        rows = [["try", *(f"MFLOPs {each}" for each in shown), "expected", "within its budget", "chosen"]]
        rows[0][1:1] = ["points lost before pruning"] * whole
        for scheme, found in results[0]["schemes"].items():
            for each in found.get("tries", {}):
                of_scheme = [result["schemes"][scheme] for result in results]
                costs = [tried["tries"][each]["flops"] for tried in of_scheme]
                within = sum("did not come within" not in tried["tries"][each]["stopped"] for tried in of_scheme)
                chosen = sum(tried["chosen_try"] == each for tried in of_scheme)
                counts = (f"{number} of {len(results)}" for number in (within, chosen))
                lost = [spread((_lost(result, scheme, each) for result in results), "{:.1f}")] if whole else []
                rows.append([each, *lost, *_mflops(costs, shown), *counts])
        if len(rows) > 1:
            parts += [f"**{title}, {PRUNERS[pruner]}**", markdown(rows)]
    return "\n\n".join(parts)


def _lost(result: Mapping[str, Any], scheme: str, each: str) -> float:
    """Points of validation accuracy that a try had lost before it was pruned, of the task that lost most."""
    entry = result["schemes"][scheme]["tries"][each]["entry"]
    return max(100 * (before - entry[task]) for task, before in result["validation_reference"].items())


def chance_table() -> str:
    """How much what merging had lost before pruning says about what a network costs in the end."""
    rows = [["experiment", "pruner", "merged networks", "expected MFLOPs", "rank correlation with points lost before"]]
    for title, pruner, results, _ in _measured():
        merged = [
            (_lost(result, scheme, each), expected_cost(tried["flops"]) / 1e6)
            for result in results
            for scheme in ("mtz", "pam")
            for each, tried in result["schemes"][scheme].get("tries", {}).items()
            if "separate" not in each
        ]
        if len(results) > 1 and merged:
            lost, costs = zip(*merged, strict=True)
            ends = f"{min(costs):.2f} to {max(costs):.2f}"
            rows.append([title, PRUNERS[pruner], str(len(costs)), ends, f"{spearmanr(lost, costs).statistic:.2f}"])
    return markdown(rows)


def efforts_table() -> str:
    """What every scheme costs with part of its effort and in the end, where experiments stopped on the way."""
    rows = [["experiment", "pruner", "scheme", "task-batches", "expected MFLOPs"]]
    for title, pruner, results, _ in _measured():
        for scheme in results[0]["schemes"]:
            ends = [result["schemes"][scheme] for result in results]
            for steps in ([end["first"] for end in ends if "first" in end], [end for end in ends if "first" in end]):
                if steps:
                    used = spread((step["task_batches"] for step in steps), "{:.0f}")
                    rows.append([title, PRUNERS[pruner], scheme, used, _mflops([s["flops"] for s in steps])[-1]])
    return markdown(rows)


def _mflops(costs: Sequence[Mapping[str, float]], shown: Iterable[str] = ()) -> list[str]:
    """The cost of each combination that is shown, and the expected one, over the seeds."""
    each = [spread((cost[tasks] / 1e6 for cost in costs), "{:.3f}") for tasks in shown]
    return [*each, spread((expected_cost(cost) / 1e6 for cost in costs), "{:.3f}")]


def latency_table() -> str:
    """Gains in FLOPs and in time, of benchmarks/bench_latency.py."""
    found = json.loads((RESULTS / "benchmarks" / "latency.json").read_text())["rows"]
    cells = {(r["network"], r["tasks"], r["threads"], r["rival"]): r for r in found if "rival" in r}
    head = ["network", "tasks", "threads", "ms of PAM"]
    rows = [[*head, *(f"{what} over {rival}" for rival in BASELINES for what in ("FLOP gain", "time gain"))]]
    for network, tasks, threads in dict.fromkeys(key[:3] for key in cells):
        each = [cells[network, tasks, threads, rival] for rival in BASELINES]
        gains = [f"{cell[name]:.2f}" for cell in each for name in ("flop_gain", "time_gain")]
        rows.append([network, tasks, str(threads), f"{each[0]['ms'][1]:.1f}", *gains])
    least = min(cell["ratio"] for cell in cells.values())
    switches = [f"{row['switch']:.1%} ({row['network']})" for row in found if "switch" in row]
    return (
        f"{markdown(rows)}\n\nThe time gain is at least {least:.2f} × the FLOP gain; running another subset than the "
        f"time before adds {' and '.join(switches)} to an inference."
    )


def _measured() -> Iterable[tuple[str, str, Results, Mapping[str, Any]]]:
    paper = json.loads((RESULTS / "paper.json").read_text())["experiments"]
    for experiment, (title, theirs) in EXPERIMENTS.items():
        for pruner in PRUNERS:
            if results := kept(experiment, pruner):
                yield title + EARLIER_MARK * (experiment in EARLIER), pruner, results, paper[theirs][pruner]


def _gain(result: Mapping[str, Any], baseline: str, scheme: str = "pam") -> Any:
    return gain(result["schemes"][baseline]["flops"], result["schemes"][scheme]["flops"])


def _limit(result: Mapping[str, Any]) -> float:
    """The gain over separate if every combination of tasks cost what its dearest task costs alone."""
    alone = result["schemes"]["separate"]["flops"]
    dearest = {tasks: max(alone[task] for task in tasks.split("+")) for tasks in alone}
    return gain(alone, dearest).average


def _paper_gain(paper: Mapping[str, Any], baseline: str) -> float:
    return statistics.fmean(row["mflops"][baseline] / row["mflops"]["pam"] for row in paper.values())


def _against_better(results: Results, scheme: str) -> float:
    """A scheme's cost under the uniform mix, over that of the better baseline."""
    costs = _mean_costs(results)
    return expected_cost(costs[scheme]) / min(expected_cost(costs[name]) for name in BASELINES)


def _worst_combination(results: Results, scheme: str) -> float:
    """The largest cost of a combination of tasks, over that of the baseline that is better for it."""
    costs = _mean_costs(results)
    return max(cost / min(costs[name][tasks] for name in BASELINES) for tasks, cost in costs[scheme].items())


def _mean_costs(results: Results) -> dict[str, dict[str, float]]:
    """What every combination costs with each scheme, over the seeds: of each one, the luckier baseline is no scheme."""
    first = results[0]["schemes"]
    return {
        name: {tasks: statistics.fmean(r["schemes"][name]["flops"][tasks] for r in results) for tasks in found["flops"]}
        for name, found in first.items()
    }


TABLES = {
    "demo output": demo_output,
    "demo table": demo_table,
    "gains": gains_table,
    "gains in short": short_gains_table,
    "combinations": combinations_table,
    "fairness": fairness_table,
    "tries": tries_table,
    "efforts": efforts_table,
    "chance": chance_table,
    "levers": studies.levers_table,
    "problem 1": studies.problem1_table,
    "relatedness": studies.relatedness_table,
    "inclusion": studies.inclusion_table,
    "conditions": studies.conditions_table,
    "latency": latency_table,
}
"""What stands between ``<!-- NAME -->`` and ``<!-- end of NAME -->``."""

if __name__ == "__main__":
    for argument in sys.argv[1:]:
        keep(Path(argument))
    CHART.write_text(costs_chart())
    for document in (ROOT / "README.md", ROOT / "docs" / "comparison.md", ROOT / "docs" / "deployment.md"):
        if document.exists():
            document.write_text(with_tables(document.read_text()))
