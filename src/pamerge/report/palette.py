"""The colours of tasks and schemes, the same in every chart of the page and in every figure.

They were chosen by a search, so that any two differ clearly with normal sight and with each common kind of colour
blindness, and so that each stands out from its background; the tests measure both. Nothing is said by colour alone:
tasks have a lane of their own, schemes a marker.
"""

from __future__ import annotations

from collections.abc import Sequence

TASKS = ("#0b55b0", "#8a3208", "#169d63", "#c36cac", "#8b8f0a", "#3a305d", "#6f4f5b", "#552317")
TASKS_ON_DARK = ("#5c8dfb", "#e4683f", "#58e6b4", "#c57fb2", "#ece463", "#b6effa", "#c3b2fc", "#8d8773")
SCHEMES = ("#1d2733", "#6b3c85", "#848d4e", "#cb6d95", "#4890df", "#6c2906")
SCHEMES_ON_DARK = ("#f2f4f7", "#4cd1fd", "#af7f34", "#f9ce83", "#588d9f", "#89886b")
"""The first is for the scheme that the others are compared with."""


def style_sheet() -> str:
    """The colours as CSS custom properties, ``--task-0``, ``--scheme-0``, …, for light and dark."""
    light = _properties("task", TASKS) + _properties("scheme", SCHEMES)
    dark = _properties("task", TASKS_ON_DARK) + _properties("scheme", SCHEMES_ON_DARK)
    return f":root {{ {light}}}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}\n"


def _properties(name: str, colours: Sequence[str]) -> str:
    return "".join(f"--{name}-{number}: {colour}; " for number, colour in enumerate(colours))
