"""Class names and colours: label files, coloured masks and overlays."""

import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Self
from xml.etree.ElementTree import Element, ParseError

import defusedxml.ElementTree
import numpy as np
import numpy.typing as npt
import yaml
from defusedxml.common import DefusedXmlException

from shared.config import StrictLoader
from shared.errors import SkylaneError
from shared.imaging.opencv import cv2

MAX_LABELS = 1024  # Labels per model; ImageNet classifiers have 1,000, or 1,001 with a background class.
MAX_MASK_LABELS = 256  # Class ids of a mask are uint8.
MAX_NAME_LENGTH = 64
MAX_FILE_BYTES = 1 << 20
MAX_LEVEL = 255  # Maximum of red, green and blue.

Colour = tuple[int, int, int]


class LabelsError(SkylaneError):
    """A label file or received labels are invalid."""


@dataclass(frozen=True, slots=True)
class Labels:
    """The names and colours (red, green, blue, each 0..255) of the classes, indexed by class id."""

    names: tuple[str, ...]
    colours: tuple[Colour, ...]

    def name_of(self, class_id: int) -> str:
        """Returns the name of a class, or `class-<id>` for an id without a label."""
        return self.names[class_id] if class_id < len(self.names) else f"class-{class_id}"

    def scored(self, class_id: int, score: float) -> dict[str, Any]:
        """Returns name, id and score of a class as the fields of a JSON object."""
        return {"name": self.name_of(class_id), "id": class_id, "score": score}

    def colour_of(self, class_id: int) -> Colour:
        """Returns the colour of a class, or black for an id without a label."""
        return self.colours[class_id] if class_id < len(self.colours) else (0, 0, 0)

    def to_wire(self) -> dict[str, list[Any]]:
        """Converts to a map of `names` and `colours`, to embed it in a message."""
        return {"names": list(self.names), "colours": [list(colour) for colour in self.colours]}

    @classmethod
    def from_wire(cls, value: object, min_count: int = 1) -> Self:
        """Converts a map from a message to labels. Unknown keys are ignored.

        Raises:
            LabelsError: Names or colours are missing, invalid, fewer than `min_count`, too many, or unequal in number.
        """
        if not isinstance(value, Mapping):
            raise LabelsError(f"labels are {type(value).__name__}: send a map of names and colours")
        names, colours = value.get("names"), value.get("colours")
        if not isinstance(names, list | tuple) or not isinstance(colours, list | tuple):
            raise LabelsError("labels need a list of names and a list of colours: send both")
        if len(names) != len(colours):
            raise LabelsError(f"labels have {len(names)} names and {len(colours)} colours: send one colour per name")
        _check_count(len(names), "labels", min_count)
        checked = [
            (_name(name, f"labels, class {index}"), _colour(colour, f"labels, class {index}"))
            for index, (name, colour) in enumerate(zip(names, colours, strict=True))
        ]
        return cls(*_unique(checked, "labels"))


def read_labels(path: Path) -> Labels:
    """Reads a label file: a file named `.xml` as SLabel XML, any other as YAML. Colours are red, green, blue.

    YAML: a list of `{name: road, colour: [128, 64, 128]}`; the index in the list is the class id.
    XML: `SLabel` elements with `Name`, `fromColour` ("128 64 128") and `toValue` (the class id), as child elements or
    as attributes. If several elements have the same id, the first one is used. Missing ids become `unused-<id>` in black.

    Raises:
        LabelsError: The file cannot be read or has an invalid entry.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise LabelsError(f"cannot read label file {path}: {error.strerror or error}") from error
    if len(data) > MAX_FILE_BYTES:
        raise LabelsError(f"label file {path} is larger than {MAX_FILE_BYTES} bytes: it is not a label file")
    return _from_xml(data, path) if path.suffix.lower() == ".xml" else _from_yaml(data, path)


def colourise(mask: npt.NDArray[np.uint8], labels: Labels) -> npt.NDArray[np.uint8]:
    """Converts a mask (H×W uint8 class ids) to the colours of its classes: H×W×3 uint8, RGB."""
    return np.asarray(cv2.applyColorMap(mask, _table(labels)), np.uint8)


def overlay(
    rgb: npt.NDArray[np.uint8], mask: npt.NDArray[np.uint8], labels: Labels, opacity: float
) -> npt.NDArray[np.uint8]:
    """Blends a coloured mask into an image.

    `rgb`: H×W×3 uint8, RGB; `mask`: H×W uint8 of the same size; `opacity`: 0 shows only the image, 1 only the mask.
    """
    assert rgb.shape == (*mask.shape, 3)
    return np.asarray(cv2.addWeighted(rgb, 1 - opacity, colourise(mask, labels), opacity, 0), np.uint8)


@lru_cache(maxsize=16)
def _table(labels: Labels) -> npt.NDArray[np.uint8]:
    """Returns the colours of all class ids: 256×1×3 uint8, RGB; black for ids without a label."""
    table = np.zeros((MAX_MASK_LABELS, 1, 3), np.uint8)
    table[: len(labels.colours), 0] = labels.colours
    return table


def _from_yaml(data: bytes, path: Path) -> Labels:
    try:
        entries = yaml.load(data, StrictLoader)  # noqa: S506  StrictLoader is a SafeLoader.
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise LabelsError(f"label file {path} is not YAML: {_one_line(error)}") from error
    if not isinstance(entries, list):
        raise LabelsError(f"label file {path} is not a list: write one {{name: …, colour: [r, g, b]}} per class")
    _check_count(len(entries), f"label file {path}")
    checked = []
    for index, entry in enumerate(entries):
        where = f"label file {path}, class {index}"
        if not isinstance(entry, dict) or set(entry) != {"name", "colour"}:
            raise LabelsError(f"{where} is {reprlib.repr(entry)}: write {{name: …, colour: [r, g, b]}}")
        checked.append((_name(entry["name"], where), _colour(entry["colour"], where)))
    return Labels(*_unique(checked, f"label file {path}"))


def _from_xml(data: bytes, path: Path) -> Labels:
    try:
        root = defusedxml.ElementTree.fromstring(data, forbid_dtd=True)
    except DefusedXmlException as error:
        raise LabelsError(f"label file {path} declares a document type or entities: remove them") from error
    except (ParseError, ValueError, LookupError) as error:
        raise LabelsError(f"label file {path} is not XML: {_one_line(error)}") from error
    classes: dict[int, tuple[str, Colour]] = {}
    for number, element in enumerate(root.iter("SLabel"), start=1):
        where = f"label file {path}, SLabel {number}"
        name = _name(_xml_field(element, "Name", where), where)
        colour = _colour(_numbers(_xml_field(element, "fromColour", where)), where)
        classes.setdefault(_class_id(_xml_field(element, "toValue", where), where), (name, colour))
    if not classes:
        raise LabelsError(f"label file {path} has no SLabel element: write one per colour")
    filled = [classes.get(class_id, (f"unused-{class_id}", (0, 0, 0))) for class_id in range(max(classes) + 1)]
    return Labels(*_unique(filled, f"label file {path}"))


def _xml_field(element: Element, field: str, where: str) -> str:
    text = element.get(field, element.findtext(field))
    if text is None:
        raise LabelsError(f"{where} has no {field}: add it as an element or an attribute")
    return text.strip()


def _numbers(text: str) -> list[int] | str:
    """Parses integers separated by spaces; returns the text itself if a word is not an integer of up to three digits."""
    words = text.split()
    return [int(word) for word in words] if all(re.fullmatch("[0-9]{1,3}", word) for word in words) else text


def _class_id(text: str, where: str) -> int:
    match _numbers(text):
        case [int() as class_id] if class_id < MAX_MASK_LABELS:  # This format describes masks.
            return class_id
    raise LabelsError(
        f"{where}: toValue {reprlib.repr(text)} is not a class id: write one from 0 to {MAX_MASK_LABELS - 1}"
    )


def _name(value: object, where: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME_LENGTH or not value.isprintable():
        raise LabelsError(
            f"{where}: name {reprlib.repr(value)} is not a text of 1 to {MAX_NAME_LENGTH} printable characters"
        )
    return value


def _colour(value: object, where: str) -> Colour:
    match value:
        case [int() as red, int() as green, int() as blue] if all(_is_level(level) for level in (red, green, blue)):
            return red, green, blue
    raise LabelsError(f"{where}: colour {reprlib.repr(value)} is not [red, green, blue], each from 0 to 255")


def _is_level(value: int) -> bool:
    return not isinstance(value, bool) and 0 <= value <= MAX_LEVEL


def _unique(classes: list[tuple[str, Colour]], where: str) -> tuple[tuple[str, ...], tuple[Colour, ...]]:
    ids: dict[str, int] = {}
    for class_id, (name, _) in enumerate(classes):
        if ids.setdefault(name, class_id) != class_id:
            raise LabelsError(f"{where}: classes {ids[name]} and {class_id} are both {name!r}: rename one")
    return tuple(ids), tuple(colour for _, colour in classes)


def _check_count(count: int, where: str, min_count: int = 1) -> None:
    if not min_count <= count <= MAX_LABELS:
        raise LabelsError(f"{where}: {count} classes: give {min_count} to {MAX_LABELS}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
