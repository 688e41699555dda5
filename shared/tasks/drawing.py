"""Drawing of results onto RGB images H×W×3 uint8. Text is legible from a width of `LEGIBLE_WIDTH`."""

import unicodedata
from typing import Any, NamedTuple

import numpy as np

from shared.imaging import boxes
from shared.imaging.codec import Mask
from shared.imaging.geometry import Geometry
from shared.imaging.image_files import ImageArray, stamp
from shared.imaging.labels import Colour, Labels
from shared.imaging.opencv import cv2
from shared.messages.model_card import ModelCard
from shared.messages.results import Classification, Detections

LEGIBLE_WIDTH = 480  # Minimum image width for legible text, pixels.

_UNTRAINED = "untrained weights"
_FONT = cv2.FONT_HERSHEY_SIMPLEX
_WHITE, _BLACK = (255, 255, 255), (0, 0, 0)
_BLACK_TEXT_LUMA = 140  # Black text is used on colours of at least this luma (0..255).
_LUMA_WEIGHTS = (0.299, 0.587, 0.114)  # Rec. ITU-R BT.601.
_CHARACTERS_PER_WIDTH = 34  # Image width divided by the size of a character.
_MIN_TEXT_HEIGHT = 9.0  # Pixels.
_TEXT_PER_BOX = 0.15  # Height of a label's text relative to the smaller side of its box.
_LEGEND_HEIGHT = 0.75  # Maximum height of a legend relative to the image.
_LEGEND_SHARE = 0.002  # Classes of fewer pixels are not in the legend.
_PANEL_FRACTION = 0.45  # Maximum size of a panel as a fraction of the image's width and height.
_PANEL_DARKENING = 0.6
_ELLIPSIS = "..."


def mark_untrained(image: ImageArray, card: ModelCard) -> ImageArray:
    """Marks an image if the model's weights are random: images are passed on without their run."""
    return image if card.trained else stamp(image, _UNTRAINED)


class _TextStyle(NamedTuple):
    """Measures and draws text of one size."""

    scale: float
    thickness: int
    height: int  # Height of a capital letter, pixels.

    @classmethod
    def for_image(cls, rgb: ImageArray) -> "_TextStyle":
        """Chooses the text size by the image width."""
        return cls._of_height(max(_MIN_TEXT_HEIGHT, rgb.shape[1] / _CHARACTERS_PER_WIDTH * 0.7))

    def for_box(self, width: int, height: int) -> "_TextStyle":
        """Chooses the text size by the size of a box in pixels, at most this size."""
        return self._of_height(min(self.height, max(_MIN_TEXT_HEIGHT, _TEXT_PER_BOX * min(width, height))))

    @classmethod
    def _of_height(cls, text_height: float) -> "_TextStyle":
        (_, height), _ = cv2.getTextSize("H", _FONT, 1.0, 1)
        scale = text_height / height
        return cls(scale, max(1, round(scale * 1.6)), round(text_height))

    @property
    def line_height(self) -> int:
        """Distance between two lines, pixels."""
        return round(self.height * 1.9)

    def width(self, text: str) -> int:
        """Returns the width of a text, pixels."""
        (width, _), _ = cv2.getTextSize(text, _FONT, self.scale, self.thickness)
        return int(width)

    def fit(self, text: str, width: int) -> str:
        """Converts a text to ASCII and truncates it to a width in pixels."""
        text = _to_ascii(text)
        if self.width(text) <= width:
            return text
        while text and self.width(text + _ELLIPSIS) > width:
            text = text[:-1]
        return text + _ELLIPSIS

    def write(self, rgb: ImageArray, text: str, left: int, top: int, colour: Colour) -> None:
        """Draws a text with its top left corner at a position."""
        cv2.putText(rgb, text, (left, top + self.height), _FONT, self.scale, colour, self.thickness, cv2.LINE_AA)


def draw_bars(rgb: ImageArray, result: Classification, labels: Labels) -> ImageArray:
    """Draws a bar chart of the scores in the lower left corner."""
    drawn, style = rgb.copy(), _TextStyle.for_image(rgb)
    max_rows = max(1, int(rgb.shape[0] * _PANEL_FRACTION) // style.line_height)
    rows = list(zip(result.class_ids, result.scores, strict=True))[:max_rows]
    gap = style.height // 2
    score_width = style.width("100 %")
    names = [style.fit(labels.name_of(class_id), int(rgb.shape[1] * _PANEL_FRACTION) // 2) for class_id, _ in rows]
    name_width = max(style.width(name) for name in names)
    bar_width = max(style.height, int(rgb.shape[1] * _PANEL_FRACTION) - name_width - score_width - 4 * gap)
    top = _panel(drawn, name_width + bar_width + score_width + 4 * gap, len(rows) * style.line_height + gap)
    for row, ((class_id, score), name) in enumerate(zip(rows, names, strict=True)):
        y = top + gap + row * style.line_height
        style.write(drawn, name, gap, y, _WHITE)
        left = 2 * gap + name_width
        filled = left + max(1, round(bar_width * min(1.0, max(0.0, score))))
        cv2.rectangle(drawn, (left, y), (left + bar_width, y + style.height), _WHITE, 1)
        cv2.rectangle(drawn, (left, y), (filled, y + style.height), labels.colour_of(class_id), cv2.FILLED)
        style.write(drawn, f"{score:.0%}".replace("%", " %"), left + bar_width + gap, y, _WHITE)
    return drawn


def draw_boxes(rgb: ImageArray, result: Detections, labels: Labels, geometry: Geometry) -> ImageArray:
    """Draws a box in the colour of its class around each object, most probable on top, labelled if there is space."""
    drawn, style = rgb.copy(), _TextStyle.for_image(rgb)
    height, width = rgb.shape[:2]
    scale = [width / geometry.target_width, height / geometry.target_height] * 2
    corners = np.rint(boxes.to_target(result.boxes, geometry) * scale).astype(np.int64)
    corners = np.clip(corners, 0, [width - 1, height - 1] * 2)
    thickness = max(1, round(width / 320))
    found = list(zip(corners.tolist(), result.class_ids.tolist(), result.scores.tolist(), strict=True))
    for (left, top, right, bottom), class_id, _ in reversed(found):
        colour = labels.colour_of(class_id)
        cv2.rectangle(drawn, (left, top), (right, bottom), _contrast(colour), thickness + 2)
        cv2.rectangle(drawn, (left, top), (right, bottom), colour, thickness)
    box_labels = _BoxLabels(drawn, style)
    for box, class_id, score in found:
        box_labels.draw(f"{labels.name_of(class_id)} {score:.0%}", box, labels.colour_of(class_id))
    return drawn


class _BoxLabels:
    """Draws the labels of boxes without overlaps."""

    def __init__(self, drawn: ImageArray, largest: _TextStyle) -> None:
        self._drawn = drawn
        self._largest = largest
        self._occupied = np.zeros(drawn.shape[:2], np.bool_)

    def draw(self, text: str, box: list[int], colour: Colour) -> None:
        """Draws a label above, below or inside its box, or omits it if there is no space."""
        image_height, image_width = self._drawn.shape[:2]
        style = self._largest.for_box(box[2] - box[0], box[3] - box[1])
        margin = style.height // 3
        text = style.fit(text, image_width - 2 * margin)
        width, height = style.width(text) + 2 * margin, style.height + 2 * margin
        left = max(0, min(box[0], image_width - width))
        inside = [box[1]] if box[2] - box[0] >= width and box[3] - box[1] >= height else []
        for top in (box[1] - height, box[3] + 1, *inside):
            area = slice(top, top + height), slice(left, left + width)
            if 0 <= top <= image_height - height and not self._occupied[area].any():
                self._occupied[area] = True
                cv2.rectangle(self._drawn, (left, top), (left + width - 1, top + height - 1), colour, cv2.FILLED)
                style.write(self._drawn, text, left + margin, top + margin, _contrast(colour))
                return


def draw_legend(drawn: ImageArray, mask: Mask, labels: Labels) -> ImageArray:
    """Draws the names of the classes in a mask into the lower left corner of an image, the largest first.

    `drawn` is changed; images narrower than `LEGIBLE_WIDTH` stay as they are.
    """
    if drawn.shape[1] < LEGIBLE_WIDTH:
        return drawn
    style = _TextStyle.for_image(drawn).for_box(0, 0)
    counts = np.bincount(mask.ravel(), minlength=256)
    by_size = np.argsort(-counts, kind="stable")
    present = by_size[counts[by_size] >= max(1, _LEGEND_SHARE * mask.size)].tolist()
    names = {class_id: labels.name_of(class_id) for class_id in present if class_id < len(labels.names)}
    max_rows = max(1, int(drawn.shape[0] * _LEGEND_HEIGHT) // style.line_height)
    rows = list(names.items())[:max_rows]
    if not rows:
        return drawn
    gap = style.height // 2
    texts = [style.fit(name, int(drawn.shape[1] * _PANEL_FRACTION)) for _, name in rows]
    width = max(map(style.width, texts)) + style.height + 3 * gap
    top = _panel(drawn, width, len(rows) * style.line_height + gap)
    for row, ((class_id, _), text) in enumerate(zip(rows, texts, strict=True)):
        y = top + gap + row * style.line_height
        cv2.rectangle(drawn, (gap, y), (gap + style.height, y + style.height), labels.colour_of(class_id), cv2.FILLED)
        style.write(drawn, text, 2 * gap + style.height, y, _WHITE)
    return drawn


def draw_lines(rgb: ImageArray, lines: list[str]) -> ImageArray:
    """Draws lines of text in the lower left corner."""
    drawn, style = rgb.copy(), _TextStyle.for_image(rgb)
    max_rows = max(1, int(rgb.shape[0] * _PANEL_FRACTION) // style.line_height)
    if len(lines) > max_rows:
        lines = [*lines[: max_rows - 1], f"and {len(lines) - max_rows + 1} more"]
    gap = style.height // 2
    texts = [style.fit(text, rgb.shape[1] - 3 * gap) for text in lines]
    width = max((style.width(text) for text in texts), default=0)
    top = _panel(drawn, width + 2 * gap, len(texts) * style.line_height + gap)
    for row, text in enumerate(texts):
        style.write(drawn, text, gap, top + gap + row * style.line_height, _WHITE)
    return drawn


def _panel(drawn: ImageArray, width: int, height: int) -> int:
    """Darkens the lower left corner as a background for text; returns its upper edge."""
    top: int = max(0, drawn.shape[0] - height)
    background: Any = drawn[top:, :width]
    background[:] = cv2.convertScaleAbs(background, alpha=1 - _PANEL_DARKENING)
    return top


def _contrast(colour: Colour) -> Colour:
    """Returns black or white, whichever is more legible on a colour."""
    return _BLACK if np.dot(colour, _LUMA_WEIGHTS) >= _BLACK_TEXT_LUMA else _WHITE


def _to_ascii(text: str) -> str:
    """Converts a text to ASCII, as OpenCV's fonts require: drops accents, replaces other characters by "?"."""
    base = "".join(letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter))
    return base.encode("ascii", "replace").decode()
