"""One look for every stage, everywhere: a colour of its node's family, and a hatch, so that colour is never alone.

The vehicle's stages are blue, the link is grey, the cloud's stages go from yellow to brown: families that stay apart for
readers who see no red, no green or no blue. Within a family neighbours differ in lightness.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class StageStyle:
    """How a stage is drawn: its colour (#rrggbb), and its hatch by Plotly's names; an empty one is plain."""

    colour: str
    hatch: str
    meaning: str  # What the frame spends the time on.


STAGES: Final = {
    "taken": StageStyle("#c9def0", "", "waits at the edge behind older work"),
    "demosaiced": StageStyle("#2c6fb0", "/", "becomes colour"),
    "preprocessed": StageStyle("#a6cdea", "\\", "is resized to the model's size"),
    "encoded": StageStyle("#0b3c78", "", "is compressed"),
    "sent": StageStyle("#6fabdb", "x", "gets a place in the window and leaves"),
    "crossing": StageStyle("#6b6b6b", "-", "is on the broker and the link, there and back"),
    "uplink": StageStyle("#4d4d4d", "-", "is on the broker and the link, to the cloud"),
    "dequeued": StageStyle("#ffe9a3", "", "waits to be admitted"),
    "decoded": StageStyle("#b5480f", "/", "becomes pixels again"),
    "batched": StageStyle("#ffd24d", "\\", "waits for the engine"),
    "inferred": StageStyle("#ee8421", "", "is segmented by the model"),
    "postprocessed": StageStyle("#fff3c9", "x", "is laid back onto the original frame"),
    "mask_encoded": StageStyle("#7d2f08", "", "is compressed for the way back"),
    "replied": StageStyle("#ffc27a", "|", "is handed to the link"),
    "downlink": StageStyle("#8f8f8f", "-", "is on the broker and the link, back to the vehicle"),
    "mask_decoded": StageStyle("#1d5a9e", ".", "is unpacked at the vehicle"),
}
TOTAL_COLOUR: Final = "#222222"
OUTCOME_COLOURS: Final = {
    "answered": "#2f7d6b",
    "dropped": "#c2549d",
    "expired": "#8c6bb1",
    "overloaded": "#d9a1c7",
    "rejected": "#6a3d9a",
    "failed": "#a50f15",
    "lost": "#3f3f3f",
    "aborted": "#9e9e9e",
}
# Runs and cells, where several lie over each other (Okabe and Ito, 2008); dashes tell them apart without colour.
SERIES: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#6b6b6b", "#000000")
DASHES: Final = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


def series_style(place: int) -> tuple[str, str]:
    """Colour and dash of the series at a place; no two of the first 16 are alike in both."""
    return SERIES[place % len(SERIES)], DASHES[(place + place // len(SERIES)) % len(DASHES)]


def with_opacity(colour: str, opacity: float) -> str:
    """A colour (#rrggbb) let through: what CSS and Plotly call rgba."""
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"


def bar_marker(stage: str) -> dict[str, object]:
    """Plotly's marker of a bar that stands for a stage."""
    look = STAGES[stage]
    line = {"color": "#ffffff", "width": 0.5}
    return {
        "color": look.colour,
        "pattern": {"shape": look.hatch, "fgcolor": text_colour(look.colour), "fillmode": "overlay", "size": 6},
        "line": line,
    }


def text_colour(colour: str) -> str:
    """What is legible on a colour: near black or white, by its luma (ITU-R BT.601)."""
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    half = 140
    return "#24292f" if 0.299 * red + 0.587 * green + 0.114 * blue > half else "#ffffff"
