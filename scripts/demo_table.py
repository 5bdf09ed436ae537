"""The README's table of the demo, from the results of its seeds.

The results are made by ``for seed in 0 1 2 3 4; do pamerge demo --seed $seed --out demo-$seed; done`` and kept, without
what only the report shows, in results/demo: ``python scripts/demo_table.py demo-0 demo-1 …`` copies them there.
Without folders it only writes the table anew. How α and zip were chosen, ``pamerge run configs/demo-tuning.toml``, is
kept in results/demo-tuning in the same way.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from pathlib import Path

from pamerge.cli.show import print_table
from pamerge.experiments.metrics import gain
from pamerge.experiments.tables import combination_rows, gain_rows, markdown

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "demo"
MARKS = ("<!-- demo table -->\n", "<!-- end of demo table -->")
PRINTED_MARKS = ("<!-- demo output -->\n", "<!-- end of demo output -->")
ONLY_IN_THE_REPORT = ("information", "path", "merging", "groups", "layer_flops", "layers", "probes")


def keep(folder: Path) -> None:
    """Copy the results of a run."""
    for path in sorted((folder / "results").glob("*.json")):
        result = json.loads(path.read_text())
        for scheme in result["schemes"].values():
            for key in ONLY_IN_THE_REPORT:
                scheme.pop(key, None)
        kept = RESULTS.with_name(result["experiment"])
        kept.mkdir(parents=True, exist_ok=True)
        (kept / path.name).write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def table() -> str:
    """Mean and spread over the seeds, and in how many of them PAM costs less."""
    results = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    wins = []
    for baseline in ("separate", "mtz"):
        gains = [gain(r["schemes"][baseline]["flops"], r["schemes"]["pam"]["flops"]).average for r in results]
        wins.append(f"over {baseline} in {sum(value >= 1 for value in gains)} of {len(gains)} seeds")
    return "\n\n".join(
        [
            markdown(combination_rows(results)),
            markdown(gain_rows(results, "pam")),
            f"The average gain is at least 1 {' and '.join(wins)}.",
        ]
    )


def printed() -> str:
    """What the demo prints for its first seed."""
    result = json.loads((RESULTS / "demo-taylor-seed0.json").read_text())
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        print_table(combination_rows([result]), "demo, pruned with taylor")
        print_table(gain_rows([result], "pam"))
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    return "```text\n" + "\n".join(line for line in lines if line) + "\n```"


def with_table(text: str) -> str:
    """The README with what the demo prints, and the table of all seeds, between their marks."""
    for marks, content in ((PRINTED_MARKS, printed()), (MARKS, table())):
        start, end = map(re.escape, marks)
        text = re.sub(f"({start}).*?({end})", lambda m, c=content: f"{m[1]}{c}\n{m[2]}", text, flags=re.S)
    return text


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        keep(Path(argument))
    readme = ROOT / "README.md"
    readme.write_text(with_table(readme.read_text()))
