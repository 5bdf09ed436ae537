"""Draws the pictures of the documentation: docs/images/*.svg.

Two of them show numbers, which come from results/theory.json. Each picture is a card with a background of its own and
follows the reader's preference for light or dark.

    python scripts/docs_images.py
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from pamerge.network.files import write_atomically

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "theory.json"
IMAGES = ROOT / "docs" / "images"
SCHEME = "PAM, α = 0.2"

STYLE = """
  :root { --page: #ffffff; --line: #c9d1da; --text: #1d2733; --quiet: #5b6672;
          --a: #0072b2; --b: #d55e00; --ab: #00916a; --on: #ffffff; }
  @media (prefers-color-scheme: dark) {
    :root { --page: #1b2027; --line: #46505c; --text: #eef1f5; --quiet: #a7b1bd;
            --a: #5ab4e8; --b: #f58b45; --ab: #2fc79a; --on: #10151b; }
  }
  .page { fill: var(--page); stroke: var(--line); }
  text { font: 13px system-ui, sans-serif; fill: var(--text); }
  .title { font-weight: 600; } .quiet { fill: var(--quiet); font-size: 12px; }
  .on { fill: var(--on); font-size: 12px; font-weight: 600; }
  .a { fill: var(--a); } .b { fill: var(--b); } .ab { fill: var(--ab); } .none { fill: var(--line); }
  .wire { fill: none; stroke: var(--quiet); stroke-width: 1.4; opacity: 0.75; }
  .axis { stroke: var(--quiet); } .curve { fill: none; stroke: var(--a); stroke-width: 2.2; }
  .kept { fill: var(--a); opacity: 0.16; } .cut { stroke: var(--b); stroke-dasharray: 5 4; stroke-width: 1.4; }
"""


def pictures(found: dict[str, Any]) -> dict[str, str]:
    """Every picture, by the name of its file."""
    return {"groups.svg": groups(), "layers.svg": layers(found), "trace.svg": trace(found)}


# -- three ways to put two networks together ---------------------------------------------------------------------------

LANES = {"A": 80, "A+B": 152, "B": 224}  # where the groups of a layer stand
COLOURS = {"A": "a", "B": "b", "A+B": "ab"}


def groups() -> str:
    """Separate, all shared and PAM: the groups of two layers, and which of them read which."""
    panels = [
        ("Separate", {"A": 56, "B": 56}, "A alone runs one network.", "A and B run two."),
        ("All shared", {"A+B": 120}, "A alone runs everything.", "So do A and B."),
        ("PAM", {"A": 40, "A+B": 48, "B": 40}, "A alone runs A and shared.", "A and B run all three, once."),
    ]
    parts: list[str] = []
    for place, (title, heights, alone, both) in enumerate(panels):
        parts.append(f'<g transform="translate({place * 256})">')
        parts += _panel(title, heights, alone, both)
        parts.append("</g>")
    description = (
        "Two networks put together in three ways. Separate: each task has a chain of its own. All shared: one chain "
        "that both outputs read. PAM: in each layer neurons of A, of B and shared ones; shared neurons feed all "
        "groups, those of a task feed only that task."
    )
    return _card(776, 338, "Separate, all shared and PAM", description, parts)


def _panel(title: str, heights: dict[str, int], alone: str, both: str) -> list[str]:
    first, second, width = 84, 154, 34
    wires, boxes = [], [_box(20, 132, 28, 40, "none"), _text(34, 190, "input", "quiet", "middle")]
    for group in heights:
        y = LANES[group]
        wires.append(_wire(48, 152, first, y))
        for other in heights:
            if set(other.split("+")) <= set(group.split("+")):  # the one rule: σ ⊆ τ
                wires.append(_wire(first + width, y, second, LANES[other]))
        for task in group.split("+"):
            wires.append(_wire(second + width, y, 218, LANES[task]))
        for x in (first, second):
            boxes.append(_box(x, y - heights[group] / 2, width, heights[group], COLOURS[group]))
            boxes.append(_text(x + width / 2, y + 4, group, "on", "middle"))
    for task in ("A", "B"):
        boxes.append(f'<circle cx="229" cy="{LANES[task]}" r="12" class="{COLOURS[task]}"/>')
        boxes.append(_text(229, LANES[task] + 4, task, "on", "middle"))
    words = [_text(20, 30, title, "title"), _text(20, 298, alone), _text(20, 318, both)]
    names = [_text(x + width / 2, 270, f"layer {n}", "quiet", "middle") for n, x in ((1, first), (2, second))]
    return [*wires, *boxes, *names, *words]


# -- the groups of a real merge ----------------------------------------------------------------------------------------


def layers(found: dict[str, Any]) -> str:
    """How many neurons of each layer are exclusive and shared, in the first run of the experiment."""
    sizes = {
        name: layer["neurons"] for name, layer in found["runs"][0]["schemes"][SCHEME]["fine-tuned"]["layers"].items()
    }
    left, width, parts = 84, 640, [_text(24, 32, f"Two LeNet-5 on digits, merged with {SCHEME}", "title")]
    for place, (name, counts) in enumerate(sizes.items()):
        y, x, total = 56 + 48 * place, float(left), sum(counts.values())
        parts.append(_text(24, y + 20, name))
        for group in ("A", "A+B", "B"):
            share = width * counts[group] / total
            if counts[group]:
                parts.append(_box(x, y, max(share - 2, 1), 30, COLOURS[group]))
            if share > 24:
                parts.append(_text(x + share / 2 - 1, y + 20, str(counts[group]), "on", "middle"))
            x += share
    y = 56 + 48 * len(sizes)
    for place, (group, meaning) in enumerate((("A", "only for A"), ("A+B", "shared"), ("B", "only for B"))):
        parts.append(_box(left + 130 * place, y + 4, 14, 14, COLOURS[group]))
        parts.append(_text(left + 20 + 130 * place, y + 16, meaning))
    listed = "; ".join(f"{n}: {c['A']} only for A, {c['A+B']} shared, {c['B']} only for B" for n, c in sizes.items())
    return _card(776, y + 40, "Exclusive and shared neurons, layer by layer", listed, parts)


# -- the greedy and α --------------------------------------------------------------------------------------------------


def trace(found: dict[str, Any], layer: str = "fc3", task: str = "A", marks: Sequence[float] = (0.05, 0.2, 0.4)) -> str:
    """Information about the other task's labels against neurons taken, with α as a horizontal cut."""
    run = found["runs"][0]["traces"][layer][task]
    bits, kept, alpha = run["bits"], run["kept"], run["alpha"]
    left, top, width, height = 64, 62, 640, 210
    most = max(bits)

    def at(count: float, value: float) -> tuple[float, float]:
        return left + width * count / len(bits), top + height * (1 - value / most)

    other = "B" if task == "A" else "A"
    parts = [
        _text(24, 32, f"{layer}: the neurons that say least about {other}'s labels come first", "title"),
        _box(left, top, width * kept / len(bits), height, "kept"),
        _line(left, top + height, left + width, top + height, "axis"),
        _line(left, top, left, top + height, "axis"),
    ]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(n + 1, value) for n, value in enumerate(bits)))
    parts.append(f'<polyline class="curve" points="{points}"/>')
    for mark in marks:
        y = at(0, mark * bits[-1])[1]
        count = next((n for n, value in enumerate(bits) if value > mark * bits[-1]), len(bits))
        x = at(count, 0)[0]
        parts += [_line(left, y, left + width, y, "cut"), _line(x, y, x, top + height, "cut")]
        parts.append(_text(left + 6, y - 5, f"α = {mark:g}: {count} of {len(bits)}", "quiet"))
    parts += [
        _text(left - 8, top + 6, f"{most:.2f}", "quiet", "end"),
        _text(left - 8, top + height + 4, "0", "quiet", "end"),
        _text(left, top - 10, f"bits about {other}'s labels", "quiet"),
        _text(left + width, top + height + 20, "neurons taken", "quiet", "end"),
        _text(left, top + height + 20, f"shaded: exclusive to {task} at α = {alpha:g}, before overlaps", "quiet"),
    ]
    description = (
        f"A curve that stays near zero at first and then rises to {most:.2f} bits. A horizontal line at α times "
        f"the layer's information cuts it; the neurons before the crossing are exclusive to {task}."
    )
    return _card(776, 330, "The greedy trace, and α as a cut", description, parts)


# -- shapes ------------------------------------------------------------------------------------------------------------


def _card(width: int, height: int, title: str, description: str, parts: Iterable[str]) -> str:
    body = "\n".join(f"  {part}" for part in parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title)}">\n'
        f"  <title>{escape(title)}</title>\n  <desc>{escape(description)}</desc>\n  <style>{STYLE}  </style>\n"
        f'  <rect class="page" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>\n{body}\n</svg>\n'
    )


def _box(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="3"/>'


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _wire(x1: float, y1: float, x2: float, y2: float) -> str:
    middle = (x1 + x2) / 2
    return f'<path class="wire" d="M{x1:.1f} {y1:.1f} C{middle:.1f} {y1:.1f} {middle:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"/>'


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    for name, picture in pictures(json.loads(RESULTS.read_text())).items():
        write_atomically(IMAGES / name, picture.encode())
