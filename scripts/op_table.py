"""Writes the table of known operations into docs/networks.md, from the op table itself.

python scripts/op_table.py
"""

from __future__ import annotations

from pathlib import Path

from pamerge.graph import known_ops
from pamerge.graph.ops import rule_for
from pamerge.network.files import write_atomically

PAGE = Path(__file__).parent.parent / "docs" / "networks.md"
MARKS = "<!-- operations: made by scripts/op_table.py -->", "<!-- end of operations -->"


def table() -> str:
    """A line for each way of treating channels: the operations that are treated so."""
    by_rule: dict[str, list[str]] = {}
    for op in known_ops():
        if op.startswith("aten."):
            rule = rule_for(op)
            how = (rule.__doc__ or "").splitlines()[0].rstrip(".") if rule else ""
            by_rule.setdefault(how, []).append(op.removeprefix("aten.").removesuffix(".default"))
    lines = ["| how it treats channels | operations (`aten.…`) |", "|---|---|"]
    lines += [f"| {how} | {', '.join(f'`{op}`' for op in ops)} |" for how, ops in sorted(by_rule.items())]
    return "\n".join(lines)


def write() -> None:
    """Put the table between the marks of the page."""
    before, rest = PAGE.read_text().split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    write_atomically(PAGE, (before + "\n".join([MARKS[0], "", table(), "", MARKS[1]]) + after).encode())


if __name__ == "__main__":
    write()
