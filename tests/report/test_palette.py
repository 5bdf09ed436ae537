"""Colours can be seen and told apart, by people with colour blindness, too."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from pamerge.report.palette import SCHEMES, SCHEMES_ON_DARK, TASKS, TASKS_ON_DARK, style_sheet

LIGHT, DARK = "#f6f7f9", "#1c2229"  # the backgrounds of bars, which differ less from the colours than the page itself
SIGHT = {  # Machado, Oliveira and Fernandes 2009, table of full severity; for linear RGB
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
PALETTES = pytest.mark.parametrize(
    ("palette", "background"),
    [(TASKS, LIGHT), (TASKS_ON_DARK, DARK), (SCHEMES, LIGHT), (SCHEMES_ON_DARK, DARK)],
    ids=["tasks", "tasks on dark", "schemes", "schemes on dark"],
)


def linear(colour: str) -> NDArray[np.float64]:
    values = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb: NDArray[np.float64]) -> NDArray[np.float64]:
    """CIELAB, in which a distance of about 2 is just visible."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = (
        np.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116 for v in to_xyz @ rgb.clip(0, 1) / [0.9505, 1, 1.089]
    )
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@PALETTES
def test_every_colour_stands_out_from_its_background(palette: tuple[str, ...], background: str) -> None:
    """WCAG 2.2, 1.4.11: a contrast of 3 : 1."""
    for colour in palette:
        dark, light = sorted(float(linear(one) @ [0.2126, 0.7152, 0.0722]) for one in (colour, background))
        assert (light + 0.05) / (dark + 0.05) >= 3, colour


@pytest.mark.parametrize("sight", SIGHT)
@PALETTES
def test_any_two_colours_differ_clearly(palette: tuple[str, ...], background: str, sight: str) -> None:
    seen = {colour: lab(np.array(SIGHT[sight]) @ linear(colour)) for colour in palette}
    for one, other in itertools.combinations(palette, 2):
        assert np.linalg.norm(seen[one] - seen[other]) > 20, (one, other)


def test_the_style_sheet_has_every_colour_for_light_and_dark() -> None:
    light, dark = style_sheet().split("@media")
    for number in range(len(TASKS)):
        assert f"--task-{number}: {TASKS[number]};" in light
        assert f"--task-{number}: {TASKS_ON_DARK[number]};" in dark
