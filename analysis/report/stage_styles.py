"""The colours and hatches of stages, outcomes and series, used by every chart and table.

Stages of the vehicle are blue, the link is grey, and stages of the cloud go from yellow to brown: colour families that
readers with any colour vision can distinguish. Neighbours within a family differ in lightness, and a hatch supplements
every colour that could be confused.
"""

from dataclasses import dataclass
from typing import Final

from shared.runlog.latency_table import WHERE


@dataclass(frozen=True, slots=True)
class StageStyle:
    """The appearance of a stage."""

    colour: str  # "#rrggbb".
    hatch: str  # A pattern name of Plotly; empty for a plain fill.
    meaning: str  # Completes the sentence "in this stage, the frame …".


STAGES: Final = {
    "taken": StageStyle("#c9def0", "", "waits in the vehicle's queue"),
    "demosaiced": StageStyle("#2c6fb0", "/", "is converted from Bayer to RGB"),
    "preprocessed": StageStyle("#a6cdea", "\\", "is resized to the model's input size"),
    "gated": StageStyle("#3f86c4", "|", "is compared with the frame whose result could be reused"),
    "inferred_locally": StageStyle("#d9ecf7", "-", "is processed by the vehicle's own model"),
    "encoded": StageStyle("#0b3c78", "", "is compressed"),
    "sent": StageStyle("#6fabdb", "x", "waits for a free slot in the window and is sent"),
    "crossing": StageStyle("#6b6b6b", "-", "is on the link and the broker, in both directions"),
    "uplink": StageStyle("#4d4d4d", "-", "is on the link and the broker, to the cloud"),
    "dequeued": StageStyle("#ffe9a3", "", "waits in the worker's queue"),
    "decoded": StageStyle("#b5480f", "/", "is decompressed"),
    "batched": StageStyle("#ffd24d", "\\", "waits for its batch and the engine"),
    "inferred": StageStyle("#ee8421", "", "is processed by the model"),
    "postprocessed": StageStyle("#fff3c9", "x", "has its result scaled to the original image"),
    "mask_encoded": StageStyle("#7d2f08", "", "has its result compressed"),
    "replied": StageStyle("#ffc27a", "|", "has its reply handed to the link"),
    "downlink": StageStyle("#8f8f8f", "-", "is on the link and the broker, back to the vehicle"),
    "mask_decoded": StageStyle("#1d5a9e", ".", "has its result decompressed at the vehicle"),
}
TOTAL_COLOUR: Final = "#222222"
OUTCOME_COLOURS: Final = {
    "answered": "#2f7d6b",
    "reused": "#7fc4ae",
    "answered_locally": "#b3a125",
    "dropped": "#c2549d",
    "expired": "#8c6bb1",
    "overloaded": "#d9a1c7",
    "rejected": "#6a3d9a",
    "failed": "#a50f15",
    "lost": "#3f3f3f",
    "aborted": "#9e9e9e",
}
FATE_COLOURS: Final = {  # Fates of the frames that passed the gate or the local model.
    "reused": OUTCOME_COLOURS["reused"],
    "answered locally": OUTCOME_COLOURS["answered_locally"],
    "sent": "#5b82a8",
    "neither sent nor answered": "#3f3f3f",
}
# Colours of runs and cells in one chart (Okabe and Ito, 2008); dashes distinguish them without colour.
SERIES: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#6b6b6b", "#000000")
DASHES: Final = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


def node_of(stage: str) -> str:
    """Returns the node a stage belongs to: edge, link or cloud."""
    return WHERE[stage]


def series_style(index: int) -> tuple[str, str]:
    """Returns colour and dash of a series; the first 16 series all differ in colour or dash."""
    return SERIES[index % len(SERIES)], DASHES[(index + index // len(SERIES)) % len(DASHES)]


def with_opacity(colour: str, opacity: float) -> str:
    """Converts "#rrggbb" to an rgba() colour of CSS."""
    red, green, blue = _rgb(colour)
    return f"rgba({red},{green},{blue},{opacity:g})"


def bar_marker(stage: str) -> dict[str, object]:
    """Returns Plotly's marker for the bar of a stage."""
    style = STAGES[stage]
    return {
        "color": style.colour,
        "pattern": {"shape": style.hatch, "fgcolor": text_colour(style.colour), "fillmode": "overlay", "size": 6},
        "line": {"color": "#ffffff", "width": 0.5},
    }


def text_colour(background: str) -> str:
    """Returns a legible text colour, near black or white, by the luma of the background (ITU-R BT.601)."""
    red, green, blue = _rgb(background)
    threshold = 140
    return "#24292f" if 0.299 * red + 0.587 * green + 0.114 * blue > threshold else "#ffffff"


def _rgb(colour: str) -> tuple[int, int, int]:
    red, green, blue = bytes.fromhex(colour[1:])
    return red, green, blue
