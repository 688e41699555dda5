"""Drawing: what a model says of a picture, laid over it for people, whatever the task is."""

import unicodedata
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shared.imaging import boxes
from shared.imaging.geometry import Geometry
from shared.imaging.image_files import Picture
from shared.imaging.labels import Colour, Labels, overlay
from shared.imaging.opencv import cv2
from shared.messages.results import Classification, Detections, Result, Tensors

LEGIBLE_WIDTH = 480  # Pixels: at fewer, a line of text is wider than the picture.

_FONT = cv2.FONT_HERSHEY_SIMPLEX
_WHITE, _BLACK = (255, 255, 255), (0, 0, 0)
_BRIGHT = 140  # Of 255: from here on black is read better than white.
_LUMA = (0.299, 0.587, 0.114)  # Rec. ITU-R BT.601.
_TEXT_SIDE = 34  # The picture's width in letters' heights.
_PANEL = 0.45  # The most of a picture's sides that a panel takes: it must not hide what it tells of.
_SHADE = 0.6  # How dark a panel's ground is.
_CUT = "..."


def draw(rgb: Picture, result: Result, labels: Labels, geometry: Geometry, opacity: float) -> Picture:
    """A copy of a picture with its result laid over it.

    `rgb`: H×W×3 uint8, RGB, what the model saw: the target of `geometry`, at any scale. A mask must have the picture's
    size and is blended in with `opacity`; a classification becomes bars in a corner, detections become boxes with
    their names, tensors a list of their shapes. Text is legible from a width of `LEGIBLE_WIDTH` on.
    """
    match result:
        case Classification():
            return _with_bars(rgb, result, labels)
        case Detections():
            return _with_boxes(rgb, result, labels, geometry)
        case Tensors():
            return _with_lines(rgb, [_shape_of(name, array) for name, array in result.values.items()])
    return overlay(rgb, result, labels, opacity)


class _Pen(NamedTuple):
    """Text of one size."""

    scale: float
    thickness: int
    height: int  # Of a capital letter, pixels.

    @classmethod
    def of(cls, rgb: Picture) -> "_Pen":
        """As large as suits a picture."""
        wanted = max(9.0, rgb.shape[1] / _TEXT_SIDE * 0.7)
        (_, height), _ = cv2.getTextSize("H", _FONT, 1.0, 1)
        scale = wanted / height
        return cls(scale, max(1, round(scale * 1.6)), round(wanted))

    @property
    def line(self) -> int:
        """From one line to the next, pixels."""
        return round(self.height * 1.9)

    def width(self, text: str) -> int:
        """Of a text, pixels."""
        (width, _), _ = cv2.getTextSize(text, _FONT, self.scale, self.thickness)
        return int(width)

    def fit(self, text: str, width: int) -> str:
        """A text, cut where it is wider than `width` pixels."""
        text = _plain(text)
        if self.width(text) <= width:
            return text
        while text and self.width(text + _CUT) > width:
            text = text[:-1]
        return text + _CUT

    def write(self, rgb: Picture, text: str, left: int, top: int, colour: Colour) -> None:
        """Put a text on a picture, the top left corner of its first letter where it says."""
        place = (left, top + self.height)
        cv2.putText(rgb, text, place, _FONT, self.scale, colour, self.thickness, cv2.LINE_AA)


def _with_bars(rgb: Picture, result: Classification, labels: Labels) -> Picture:
    """A bar a class, as long as its score, in the lower left corner."""
    drawn, pen = rgb.copy(), _Pen.of(rgb)
    room = max(1, int(rgb.shape[0] * _PANEL) // pen.line)
    rows = list(zip(result.class_ids, result.scores, strict=True))[:room]
    gap = pen.height // 2
    number = pen.width("100 %")
    names = [pen.fit(labels.name_of(class_id), int(rgb.shape[1] * _PANEL) // 2) for class_id, _ in rows]
    name_width = max(pen.width(name) for name in names)
    bar_width = max(pen.height, int(rgb.shape[1] * _PANEL) - name_width - number - 4 * gap)
    top = _panel(drawn, name_width + bar_width + number + 4 * gap, len(rows) * pen.line + gap)
    for row, ((class_id, score), name) in enumerate(zip(rows, names, strict=True)):
        at = top + gap + row * pen.line
        pen.write(drawn, name, gap, at, _WHITE)
        left = 2 * gap + name_width
        filled = left + max(1, round(bar_width * min(1.0, max(0.0, score))))
        cv2.rectangle(drawn, (left, at), (left + bar_width, at + pen.height), _WHITE, 1)
        cv2.rectangle(drawn, (left, at), (filled, at + pen.height), labels.colour_of(class_id), cv2.FILLED)
        pen.write(drawn, f"{score:.0%}".replace("%", " %"), left + bar_width + gap, at, _WHITE)
    return drawn


def _with_boxes(rgb: Picture, result: Detections, labels: Labels, geometry: Geometry) -> Picture:
    """A box in its class's colour around each object, the most probable on top, and named where there is room."""
    drawn, pen = rgb.copy(), _Pen.of(rgb)
    height, width = rgb.shape[:2]
    scale = [width / geometry.target_width, height / geometry.target_height] * 2
    corners = np.rint(boxes.apply(result.boxes, geometry) * scale).astype(np.int64)
    corners = np.clip(corners, 0, [width - 1, height - 1] * 2)
    stroke = max(1, round(width / 320))
    for place in range(len(corners) - 1, -1, -1):
        left, top, right, bottom = (int(side) for side in corners[place])
        colour = labels.colour_of(int(result.class_ids[place]))
        cv2.rectangle(drawn, (left, top), (right, bottom), _contrast(colour), stroke + 2)
        cv2.rectangle(drawn, (left, top), (right, bottom), colour, stroke)
    tags = _Tags(drawn, pen)
    for box, class_id, score in zip(corners.tolist(), result.class_ids.tolist(), result.scores.tolist(), strict=True):
        tags.put(f"{labels.name_of(class_id)} {score:.0%}", box, labels.colour_of(class_id))
    return drawn


class _Tags:
    """The names of boxes on a picture, none over another."""

    def __init__(self, drawn: Picture, pen: _Pen) -> None:
        self._drawn = drawn
        self._pen = pen
        self._taken = np.zeros(drawn.shape[:2], np.bool_)

    def put(self, text: str, box: list[int], colour: Colour) -> None:
        """A name above its box, below it or within, where there is room; else none, and the colour must tell."""
        height, width = self._drawn.shape[:2]
        edge = self._pen.height // 3
        text = self._pen.fit(text, width - 2 * edge)
        across, down = self._pen.width(text) + 2 * edge, self._pen.height + 2 * edge
        left = max(0, min(box[0], width - across))
        within = [box[1]] if box[2] - box[0] >= across and box[3] - box[1] >= down else []
        for top in (box[1] - down, box[3] + 1, *within):
            place = slice(top, top + down), slice(left, left + across)
            if 0 <= top <= height - down and not self._taken[place].any():
                self._taken[place] = True
                cv2.rectangle(self._drawn, (left, top), (left + across - 1, top + down - 1), colour, cv2.FILLED)
                self._pen.write(self._drawn, text, left + edge, top + edge, _contrast(colour))
                return


def _with_lines(rgb: Picture, lines: list[str]) -> Picture:
    """Lines of text in the lower left corner."""
    drawn, pen = rgb.copy(), _Pen.of(rgb)
    room = max(1, int(rgb.shape[0] * _PANEL) // pen.line)
    told = lines if len(lines) <= room else [*lines[: room - 1], f"and {len(lines) - room + 1} more"]
    gap = pen.height // 2
    texts = [pen.fit(text, rgb.shape[1] - 3 * gap) for text in told]
    width = max((pen.width(text) for text in texts), default=0)
    top = _panel(drawn, width + 2 * gap, len(texts) * pen.line + gap)
    for row, text in enumerate(texts):
        pen.write(drawn, text, gap, top + gap + row * pen.line, _WHITE)
    return drawn


def _panel(drawn: Picture, width: int, height: int) -> int:
    """Darken the lower left corner for text; returns the panel's upper edge."""
    top: int = max(0, drawn.shape[0] - height)
    ground: Any = drawn[top:, :width]
    ground[:] = cv2.convertScaleAbs(ground, alpha=1 - _SHADE)
    return top


def _contrast(colour: Colour) -> Colour:
    """Black or white, whichever is read on a colour."""
    return _BLACK if np.dot(colour, _LUMA) >= _BRIGHT else _WHITE


def _shape_of(name: str, array: npt.NDArray[Any]) -> str:
    return f"{name}: {array.dtype.name} {' x '.join(map(str, array.shape)) or 'number'}"


def _plain(text: str) -> str:
    """A text in the letters that OpenCV's fonts have, ASCII; accents go, other letters become question marks."""
    bare = "".join(letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter))
    return bare.encode("ascii", "replace").decode()
