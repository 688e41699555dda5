"""Who sees fewer colours must still see where one stage ends and the next begins."""

from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest

from bench.report.chapters.run.stages import node_of
from bench.report.output.stage_styles import OUTCOME_COLOURS, SERIES, STAGES, series_style, text_colour
from shared.runlog.latency_log import Outcome
from shared.runlog.latency_table import PARTS

Matrix = npt.NDArray[np.float64]

# Machado, Oliveira and Fernandes (2009), severity 1.0, on linear RGB.
VISIONS = {
    "all colours": np.eye(3),
    "no red": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    "no green": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
    "no blue": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]),
}  # fmt: skip
APART = 12.0  # CIELAB units; 2.3 is what can just be told side by side (Mahy et al., 1994).


def lab(colour: str, vision: Matrix) -> Matrix:
    """A colour (#rrggbb) as CIELAB under D65, as someone of that vision sees it."""
    srgb = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(vision @ linear, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ seen / np.array([0.95047, 1.0, 1.08883])
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def distance(a: str, b: str, vision: Matrix) -> float:
    """How far apart two colours look (CIE 1976)."""
    return float(np.linalg.norm(lab(a, vision) - lab(b, vision)))


@pytest.mark.parametrize("vision", VISIONS)
def test_neighbours_in_the_stack_can_be_told_apart(vision: str) -> None:
    """Also those that meet where the stage between them takes no time."""
    parts = [str(part) for part in PARTS]
    for step in (1, 2):
        for a, b in zip(parts, parts[step:], strict=False):
            apart = distance(STAGES[a].colour, STAGES[b].colour, VISIONS[vision])
            assert apart >= APART or STAGES[a].hatch != STAGES[b].hatch, (a, b, apart)
            assert step == 2 or apart >= APART, (a, b, apart)


@pytest.mark.parametrize("vision", VISIONS)
def test_no_two_stages_look_alike_everywhere(vision: str) -> None:
    """Colour is never alone: what is near in colour differs in its hatch."""
    for a, b in combinations(map(str, PARTS), 2):
        near = distance(STAGES[a].colour, STAGES[b].colour, VISIONS[vision]) < APART
        assert not near or STAGES[a].hatch != STAGES[b].hatch, (a, b)


@pytest.mark.parametrize("vision", VISIONS)
def test_vehicle_and_cloud_stay_two_families(vision: str) -> None:
    """Which side of the link the time went is the first question."""
    nodes = {
        node: [STAGES[part].colour for part in map(str, PARTS) if node_of(part) == node] for node in ("edge", "cloud")
    }
    nearest = min(distance(a, b, VISIONS[vision]) for a in nodes["edge"] for b in nodes["cloud"])
    assert nearest >= APART


def test_every_stage_and_outcome_has_its_look() -> None:
    """One that was added later would end the report with an error."""
    assert {str(part) for part in PARTS} | {"uplink", "downlink"} == STAGES.keys()
    assert {outcome.value for outcome in Outcome} == OUTCOME_COLOURS.keys()


def test_series_repeat_late() -> None:
    """Sixteen cells lie over each other before two look alike."""
    assert len({series_style(place) for place in range(16)}) == 16
    assert len(set(SERIES)) == len(SERIES)


def test_text_on_a_stage_can_be_read() -> None:
    """Its contrast with the colour under it is at least 3 to 1 (WCAG 2.1, large text and graphics)."""
    for look in STAGES.values():
        light, dark = sorted(
            (lab(colour, np.eye(3))[0] for colour in (look.colour, text_colour(look.colour))), reverse=True
        )  # fmt: skip
        above, below = ((((level + 16) / 116) ** 3 if level > 8 else level / 903.3) for level in (light, dark))
        assert (above + 0.05) / (below + 0.05) >= 3, look
