"""Class names and their colours: the label files, the coloured mask, the overlay."""

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

MAX_LABELS = 1024  # Of a model: public classifiers tell 1,000 classes apart, or with a background 1,001.
MAX_MASK_LABELS = 256  # A mask holds uint8 class ids.
MAX_NAME_LENGTH = 64
MAX_FILE_BYTES = 1 << 20
MAX_LEVEL = 255  # Of red, green or blue.

Colour = tuple[int, int, int]


class LabelsError(SkylaneError):
    """A label file, or labels from the wire, that cannot be used."""


@dataclass(frozen=True, slots=True)
class Labels:
    """Names and colours (red, green, blue, each 0..255) of the classes; the place in both is the class id."""

    names: tuple[str, ...]
    colours: tuple[Colour, ...]

    def name_of(self, class_id: int) -> str:
        """The class's name; of an id without a label, its number."""
        return self.names[class_id] if class_id < len(self.names) else f"class-{class_id}"

    def colour_of(self, class_id: int) -> Colour:
        """The class's colour; of an id without a label, black, as in a coloured mask."""
        return self.colours[class_id] if class_id < len(self.colours) else (0, 0, 0)

    def to_wire(self) -> dict[str, list[Any]]:
        """A plain map: `names`, and `colours` as lists of three."""
        return {"names": list(self.names), "colours": [list(colour) for colour in self.colours]}

    @classmethod
    def from_wire(cls, value: object, least: int = 1) -> Self:
        """The labels in a map that came from the wire. Keys it does not know are ignored. `least`: how many at least.

        Raises:
            LabelsError: names or colours are missing, too few, too many, unequal in number or not what they should be.
        """
        if not isinstance(value, Mapping):
            raise LabelsError(f"labels are {type(value).__name__}: send a map of names and colours")
        names, colours = value.get("names"), value.get("colours")
        if not isinstance(names, list | tuple) or not isinstance(colours, list | tuple):
            raise LabelsError("labels hold no list of names and list of colours: send both")
        if len(names) != len(colours):
            raise LabelsError(f"labels hold {len(names)} names and {len(colours)} colours: send one colour a name")
        _check_count(len(names), "labels", least)
        checked = [
            (_name(name, f"labels, class {index}"), _colour(colour, f"labels, class {index}"))
            for index, (name, colour) in enumerate(zip(names, colours, strict=True))
        ]
        return cls(*_unique(checked, "labels"))


def read_labels(path: Path) -> Labels:
    """Read a label file: `.xml` as SLabel XML, any other as YAML.

    YAML: a list of `{name: road, colour: [128, 64, 128]}`; the place in the list is the class id.
    XML: elements `SLabel` with `Name`, `fromColour` ("128 64 128") and `toValue` (the class id), as child elements or
    as attributes. Several may give one id: the first gives its name and colour. Ids that no element gives are named
    `unused-<id>` and black. All colours are red, green, blue.

    Raises:
        LabelsError: the file cannot be read, or an entry of it is not as above; says which.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise LabelsError(f"cannot read label file {path}: {error.strerror or error}") from error
    if len(data) > MAX_FILE_BYTES:
        raise LabelsError(f"label file {path} is larger than {MAX_FILE_BYTES} bytes: it is no label file")
    return _from_xml(data, path) if path.suffix.lower() == ".xml" else _from_yaml(data, path)


def colourise(mask: npt.NDArray[np.uint8], labels: Labels) -> npt.NDArray[np.uint8]:
    """Paint a mask (H×W uint8 class ids) in its classes' colours: H×W×3 uint8, RGB; ids without a label are black."""
    return np.asarray(cv2.applyColorMap(mask, _table(labels)), np.uint8)


def overlay(
    rgb: npt.NDArray[np.uint8], mask: npt.NDArray[np.uint8], labels: Labels, opacity: float
) -> npt.NDArray[np.uint8]:
    """Lay the coloured mask over its picture.

    `rgb`: H×W×3 uint8, RGB; `mask`: H×W uint8 of the same size; `opacity`: 0 shows the picture only, 1 the mask only.
    """
    assert rgb.shape == (*mask.shape, 3)
    return np.asarray(cv2.addWeighted(rgb, 1 - opacity, colourise(mask, labels), opacity, 0), np.uint8)


@lru_cache(maxsize=16)
def _table(labels: Labels) -> npt.NDArray[np.uint8]:
    """The colour of every possible class id: 256×1×3 uint8, RGB."""
    table = np.zeros((MAX_MASK_LABELS, 1, 3), np.uint8)
    table[: len(labels.colours), 0] = labels.colours
    return table


def _from_yaml(data: bytes, path: Path) -> Labels:
    try:
        entries = yaml.load(data, StrictLoader)  # noqa: S506  StrictLoader is a SafeLoader.
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise LabelsError(f"label file {path} is no YAML: {_one_line(error)}") from error
    if not isinstance(entries, list):
        raise LabelsError(f"label file {path} holds no list: write one {{name: …, colour: [r, g, b]}} a class")
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
        raise LabelsError(f"label file {path} is no XML: {_one_line(error)}") from error
    classes: dict[int, tuple[str, Colour]] = {}
    for number, element in enumerate(root.iter("SLabel"), start=1):
        where = f"label file {path}, SLabel {number}"
        name = _name(_xml_field(element, "Name", where), where)
        colour = _colour(_numbers(_xml_field(element, "fromColour", where)), where)
        classes.setdefault(_class_id(_xml_field(element, "toValue", where), where), (name, colour))
    if not classes:
        raise LabelsError(f"label file {path} holds no SLabel element: write one for each colour")
    filled = [classes.get(class_id, (f"unused-{class_id}", (0, 0, 0))) for class_id in range(max(classes) + 1)]
    return Labels(*_unique(filled, f"label file {path}"))


def _xml_field(element: Element, field: str, where: str) -> str:
    text = element.get(field, element.findtext(field))
    if text is None:
        raise LabelsError(f"{where} has no {field}: add it as an element or an attribute")
    return text.strip()


def _numbers(text: str) -> list[int] | str:
    """The whole numbers in a text, parted by blanks; the text itself where one of its words is no such number."""
    words = text.split()
    return [int(word) for word in words] if all(re.fullmatch("[0-9]{1,3}", word) for word in words) else text


def _class_id(text: str, where: str) -> int:
    match _numbers(text):
        case [int() as class_id] if class_id < MAX_MASK_LABELS:  # A colour that stands for a class is one of a mask.
            return class_id
    raise LabelsError(
        f"{where}: toValue {reprlib.repr(text)} is no class id: write one from 0 to {MAX_MASK_LABELS - 1}"
    )


def _name(value: object, where: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME_LENGTH or not value.isprintable():
        raise LabelsError(
            f"{where}: name {reprlib.repr(value)} is no text of 1 to {MAX_NAME_LENGTH} printable characters"
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
    places: dict[str, int] = {}
    for class_id, (name, _) in enumerate(classes):
        if places.setdefault(name, class_id) != class_id:
            raise LabelsError(f"{where}: classes {places[name]} and {class_id} are both {name!r}: rename one")
    return tuple(places), tuple(colour for _, colour in classes)


def _check_count(count: int, where: str, least: int = 1) -> None:
    if not least <= count <= MAX_LABELS:
        raise LabelsError(f"{where}: {count} classes: give 1 to {MAX_LABELS}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
