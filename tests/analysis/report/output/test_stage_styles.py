"""Readers with colour vision deficiencies must be able to distinguish the stages."""

from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest

from analysis.report.stage_styles import (
    FATE_COLOURS,
    OUTCOME_COLOURS,
    SERIES,
    STAGES,
    node_of,
    series_style,
    text_colour,
)
from shared.runlog.latency_log import Outcome
from shared.runlog.latency_table import parts_of
from shared.stages import OPTIONAL_STAGES

Matrix = npt.NDArray[np.float64]

# Machado, Oliveira and Fernandes (2009), severity 1.0, on linear RGB.
VISIONS = {
    "normal": np.eye(3),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
    "tritanopia": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]),
}  # fmt: skip
ALL_PARTS = parts_of(OPTIONAL_STAGES)
MIN_DISTANCE = 12.0  # CIELAB units; the just noticeable difference is 2.3 (Mahy et al., 1994).


def lab(colour: str, vision: Matrix) -> Matrix:
    """Converts "#rrggbb" to CIELAB under D65 as seen with the given vision."""
    srgb = np.array([*bytes.fromhex(colour[1:])]) / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(vision @ linear, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ seen / np.array([0.95047, 1.0, 1.08883])
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def distance(a: str, b: str, vision: Matrix) -> float:
    """Returns the colour difference ΔE (CIE 1976)."""
    return float(np.linalg.norm(lab(a, vision) - lab(b, vision)))


@pytest.mark.parametrize("vision", VISIONS)
def test_stages_differ_in_colour_or_hatch_and_neighbours_in_colour(vision: str) -> None:
    """No two stages look alike."""
    orders = [list(map(str, parts_of(passed))) for passed in ((), *combinations(OPTIONAL_STAGES, 1), OPTIONAL_STAGES)]
    for parts, a, b in ((order, *pair) for order in orders for pair in combinations(order, 2)):
        is_near = distance(STAGES[a].colour, STAGES[b].colour, VISIONS[vision]) < MIN_DISTANCE
        assert not is_near or STAGES[a].hatch != STAGES[b].hatch, (a, b)
        assert not is_near or parts.index(b) - parts.index(a) > 1, (a, b)


@pytest.mark.parametrize("vision", VISIONS)
def test_stages_of_vehicle_and_cloud_can_be_distinguished(vision: str) -> None:
    """The reader must see on which side of the link the time was spent."""
    nodes = {
        node: [STAGES[part].colour for part in map(str, ALL_PARTS) if node_of(part) == node]
        for node in ("edge", "cloud")
    }
    nearest = min(distance(a, b, VISIONS[vision]) for a in nodes["edge"] for b in nodes["cloud"])
    assert nearest >= MIN_DISTANCE


def test_every_stage_and_outcome_has_a_colour() -> None:
    """A stage or outcome without a style would make the report fail."""
    assert {str(part) for part in ALL_PARTS} | {"uplink", "downlink"} == STAGES.keys()
    assert {outcome.value for outcome in Outcome} == OUTCOME_COLOURS.keys()


@pytest.mark.parametrize("vision", VISIONS)
def test_origins_of_results_can_be_distinguished(vision: str) -> None:
    """Bars of frames that were sent, reused or answered locally stand next to each other."""
    colours = [OUTCOME_COLOURS[outcome.value] for outcome in Outcome if outcome.has_result]
    for a, b in [*combinations(colours, 2), *combinations(FATE_COLOURS.values(), 2)]:
        assert distance(a, b, VISIONS[vision]) >= MIN_DISTANCE, (a, b)


def test_the_first_sixteen_series_look_different() -> None:
    """A study can show many cells in one chart."""
    assert len({series_style(index) for index in range(16)}) == 16
    assert len(set(SERIES)) == len(SERIES)


def test_text_on_a_stage_is_legible() -> None:
    """The contrast of the text is at least 3:1 (WCAG 2.1, large text and graphics)."""
    for style in STAGES.values():
        light, dark = sorted(
            (lab(colour, np.eye(3))[0] for colour in (style.colour, text_colour(style.colour))), reverse=True
        )  # fmt: skip
        above, below = ((((level + 16) / 116) ** 3 if level > 8 else level / 903.3) for level in (light, dark))
        assert (above + 0.05) / (below + 0.05) >= 3, style
