"""Class names and colours: label files, coloured masks and overlays."""

import re
import reprlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, ParseError

import defusedxml.ElementTree
import numpy as np
import numpy.typing as npt
import yaml
from defusedxml.common import DefusedXmlException

from shared.config import StrictLoader
from shared.errors import SkylaneError, UnknownNameError
from shared.imaging.opencv import cv2
from shared.package_data import shipped

MAX_LABELS = 1024  # Labels per model; ImageNet classifiers have 1,000, or 1,001 with a background class.
MAX_MASK_LABELS = 256  # Class ids of a mask are uint8.
MAX_NAME_LENGTH = 64
MAX_FILE_BYTES = 1 << 20
MAX_LEVEL = 255  # Maximum of red, green and blue.

Colour = tuple[int, int, int]


class LabelsError(SkylaneError, ValueError):
    """Labels are invalid, or a label file cannot be read."""


@dataclass(frozen=True, slots=True)
class Labels:
    """The names and colours (red, green, blue, each 0..255) of the classes, indexed by class id."""

    names: tuple[str, ...]
    colours: tuple[Colour, ...]

    def __post_init__(self) -> None:
        """Raises LabelsError for too many or repeated names, unprintable names, and impossible colours."""
        if len(self.names) != len(self.colours) or len(self.names) > MAX_LABELS:
            raise LabelsError(
                f"{len(self.names)} classes with {len(self.colours)} colours: give one each, at most {MAX_LABELS}"
            )
        ids: dict[str, int] = {}
        for class_id, (name, colour) in enumerate(zip(self.names, self.colours, strict=True)):
            if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_LENGTH or not name.isprintable():
                limits = f"a text of 1 to {MAX_NAME_LENGTH} printable characters"
                raise LabelsError(f"class {class_id}: name {reprlib.repr(name)} is not {limits}")
            if not _is_colour(colour):
                shown = reprlib.repr(colour)
                raise LabelsError(f"class {class_id}: colour {shown} is not [red, green, blue], each from 0 to 255")
            if ids.setdefault(name, class_id) != class_id:
                raise LabelsError(f"classes {ids[name]} and {class_id} are both {name!r}: rename one")

    def name_of(self, class_id: int) -> str:
        """Returns the name of a class, or `class-<id>` for an id without a label."""
        return self.names[class_id] if class_id < len(self.names) else f"class-{class_id}"

    def scored(self, class_id: int, score: float) -> dict[str, Any]:
        """Returns name, id and score of a class as the fields of a JSON object."""
        return {"name": self.name_of(class_id), "id": class_id, "score": score}

    def colour_of(self, class_id: int) -> Colour:
        """Returns the colour of a class, or black for an id without a label."""
        return self.colours[class_id] if class_id < len(self.colours) else (0, 0, 0)


def _is_colour(value: object) -> bool:
    match value:
        case [int() as red, int() as green, int() as blue]:
            return all(type(level) is int and 0 <= level <= MAX_LEVEL for level in (red, green, blue))
    return False


def label_sets() -> dict[str, Path]:
    """Returns the files of the label sets that ship with Skylane, by name."""
    paths = (shipped("configs") / "labels").glob("*.yaml")
    return {path.stem: path for path in sorted(paths, key=lambda each: each.stem)}


def labels_from(given: str) -> Labels:
    """Returns the label set of that name, otherwise the labels of that file; `./coco` is always a file.

    Raises:
        UnknownNameError: It is no label set and no file; the message suggests similar sets.
        LabelsError: See `read_labels`.
    """
    sets, path = label_sets(), Path(given)
    if given in sets:
        return read_labels(sets[given])
    if given == path.stem and not path.exists():
        raise UnknownNameError("label set", given, sets, f" (a file needs a path: ./{given})")
    return read_labels(path)


def read_labels(path: Path) -> Labels:
    """Reads a label file: a file named `.xml` as SLabel XML, any other as YAML. Colours are red, green, blue.

    YAML: a list of `{name: road, colour: [128, 64, 128]}`; the index in the list is the class id.
    XML: `SLabel` elements with `Name`, `fromColour` ("128 64 128") and `toValue` (the class id), as child elements or
    as attributes. If several elements have the same id, the first one is used. Missing ids become `unused-<id>` in black.

    Raises:
        LabelsError: The file cannot be read or has an invalid entry.
    """
    if path.exists() and not path.is_file():
        raise LabelsError(f"{path} is not a file: give a label file, or a label set: {', '.join(label_sets())}")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise LabelsError(f"cannot read label file {path}: {error.strerror or error}") from error
    if len(data) > MAX_FILE_BYTES:
        raise LabelsError(f"label file {path} is larger than {MAX_FILE_BYTES} bytes: it is not a label file")
    try:
        classes = _from_xml(data) if path.suffix.lower() == ".xml" else _from_yaml(data)
        names, colours = zip(*classes, strict=True)
        return Labels(names, colours)
    except LabelsError as error:
        raise LabelsError(f"label file {path}: {error}") from error


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


def _from_yaml(data: bytes) -> list[tuple[Any, Any]]:
    """Returns the unchecked names and colours of the classes."""
    try:
        entries = yaml.load(data, StrictLoader)  # noqa: S506  StrictLoader is a SafeLoader.
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise LabelsError(f"it is not YAML: {_one_line(error)}") from error
    if not isinstance(entries, list):
        raise LabelsError("it is not a list: write one {name: …, colour: [r, g, b]} per class")
    if not entries:
        raise LabelsError(f"0 classes: give 1 to {MAX_LABELS}")
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict) or set(entry) != {"name", "colour"}:
            raise LabelsError(f"class {index} is {reprlib.repr(entry)}: write {{name: …, colour: [r, g, b]}}")
    return [
        (entry["name"], tuple(colour) if isinstance(colour := entry["colour"], list) else colour) for entry in entries
    ]


def _from_xml(data: bytes) -> list[tuple[Any, Any]]:
    """Returns the unchecked names and colours of the classes."""
    try:
        root = defusedxml.ElementTree.fromstring(data, forbid_dtd=True)
    except DefusedXmlException as error:
        raise LabelsError("it declares a document type or entities: remove them") from error
    except (ParseError, ValueError, LookupError) as error:
        raise LabelsError(f"it is not XML: {_one_line(error)}") from error
    classes: dict[int, tuple[str, object]] = {}
    for number, element in enumerate(root.iter("SLabel"), start=1):
        name, colour, text = (_xml_field(element, field, number) for field in ("Name", "fromColour", "toValue"))
        match _numbers(text):
            case (int() as class_id,) if class_id < MAX_MASK_LABELS:  # This format describes masks.
                classes.setdefault(class_id, (name, _numbers(colour)))
            case _:
                limits = f"write one from 0 to {MAX_MASK_LABELS - 1}"
                raise LabelsError(f"SLabel {number}: toValue {reprlib.repr(text)} is not a class id: {limits}")
    if not classes:
        raise LabelsError("it has no SLabel element: write one per colour")
    return [classes.get(class_id, (f"unused-{class_id}", (0, 0, 0))) for class_id in range(max(classes) + 1)]


def _xml_field(element: Element, field: str, number: int) -> str:
    text = element.get(field, element.findtext(field))
    if text is None:
        raise LabelsError(f"SLabel {number} has no {field}: add it as an element or an attribute")
    return text.strip()


def _numbers(text: str) -> tuple[int, ...] | str:
    """Parses integers separated by spaces; returns the text itself if a word is not an integer of up to three digits."""
    words = text.split()
    return tuple(map(int, words)) if all(re.fullmatch("[0-9]{1,3}", word) for word in words) else text


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
