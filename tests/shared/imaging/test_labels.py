from pathlib import Path

import msgpack
import numpy as np
import pytest

from shared.imaging.labels import MAX_FILE_BYTES, Labels, LabelsError, colourise, overlay, read_labels
from shared.messages.msgpack_reader import MessageError
from shared.messages.node_status import NodeState, NodeStatus, pack_status, unpack_status
from tests.support.tiny_model import CARD

ROOT = Path(__file__).parents[3]
TWO = Labels(("road", "car"), ((128, 64, 128), (0, 0, 142)))

ELEMENTS = """<?xml version="1.0" encoding="utf-8"?>
<Labels>
  <SLabel><Name>road</Name><fromColour>128 64 128</fromColour><toValue>0</toValue></SLabel>
  <SLabel><Name>car</Name><fromColour>0 0 142</fromColour><toValue>3</toValue></SLabel>
  <SLabel><Name>small car</Name><fromColour>0 0 143</fromColour><toValue>3</toValue></SLabel>
</Labels>
"""
ATTRIBUTES = """<Labels>
  <SLabel Name="road" fromColour="128 64 128" toValue="0"/>
  <SLabel Name="car" fromColour="0 0 142" toValue="3"/>
  <SLabel Name="small car" fromColour="0 0 143" toValue="3"/>
</Labels>
"""


def write_file(folder: Path, name: str, text: str | bytes) -> Path:
    """Writes a label file."""
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_street12_has_the_expected_classes() -> None:
    """All our models and sample bags use these ids and colours."""
    labels = read_labels(ROOT / "configs/labels/street12.yaml")
    assert labels.names == (
        *("road", "sidewalk", "building", "pole", "vegetation", "sky"),
        *("person", "rider", "car", "truck", "bus", "none"),
    )
    assert labels.colours[:3] == ((128, 64, 128), (244, 35, 232), (70, 70, 70))
    assert labels.colours[8] == (0, 0, 142)


@pytest.mark.parametrize("text", [ELEMENTS, ATTRIBUTES], ids=["elements", "attributes"])
def test_slabel_xml_may_use_elements_or_attributes(tmp_path: Path, text: str) -> None:
    """If several elements have one id, the first is used; missing ids become unused classes."""
    labels = read_labels(write_file(tmp_path, "labels.xml", text))
    assert labels.names == ("road", "unused-1", "unused-2", "car")
    assert labels.colours == ((128, 64, 128), (0, 0, 0), (0, 0, 0), (0, 0, 142))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not a list"),
        ("road", "is not a list"),
        ("[", "is not YAML"),
        ("[" * 50_000, "is not YAML"),
        (b"- \x80", "is not YAML"),
        ("[]", "0 classes"),
        ("- {name: road, colour: [1, 2, 3]}\n" * 1025, "1025 classes"),
        ("- road", "class 0 is 'road'"),
        ("- {name: road}", "class 0 is"),
        ("- {name: road, color: [1, 2, 3]}", "write {name: …, colour:"),
        ("- {name: road, colour: [1, 2, 3], id: 3}", "class 0 is"),
        ("- {name: yes, colour: [1, 2, 3]}", "name True"),
        ("- {name: 1, colour: [1, 2, 3]}", "class 0: name 1 is not a text"),
        ('- {name: "\\e[31mred", colour: [1, 2, 3]}', "printable"),
        ('- {name: "two\\nlines", colour: [1, 2, 3]}', "printable"),
        ('- {name: "\\u202egnp", colour: [1, 2, 3]}', "printable"),
        ("- {name: '" + "x" * 65 + "', colour: [1, 2, 3]}", "1 to 64"),
        ("- a\n" * 250_000, "more than 20000"),
        ("x" * 2_000_000, "larger than"),
        ("{road: [1, 2, 3]}", "is not a list"),
        ("- {name: '', colour: [1, 2, 3]}", "name ''"),
        ("- {name: road, colour: [1, 2]}", "colour .1, 2. is not"),
        ("- {name: road, colour: [1, 2, 256]}", "colour .1, 2, 256. is not"),
        ("- {name: road, colour: [1, 2, yes]}", "colour .1, 2, True. is not"),
        ("- {name: road, colour: '1 2 3'}", "colour '1 2 3'"),
        (
            "- {name: road, colour: [1, 2, 3]}\n- {name: road, colour: [3, 2, 1]}",
            "classes 0 and 1 are both 'road': rename one",
        ),
        ("- &a {name: road, colour: [1, 2, 3]}\n- *a", "aliases are not supported"),
        ("- !!python/object/apply:os.getpid []", "is not YAML"),
    ],
)
def test_invalid_yaml_entry_is_named(tmp_path: Path, text: str | bytes, reason: str) -> None:
    """Label files are written by hand: the error names file, entry and problem."""
    path = write_file(tmp_path, "labels.yaml", text)
    with pytest.raises(LabelsError, match=reason) as raised:
        read_labels(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not XML"),
        ("<Labels>", "is not XML"),
        ("<Labels/>", "has no SLabel"),
        ("<L><SLabel Name='a' toValue='0'/></L>", "SLabel 1 has no fromColour"),
        ("<L><SLabel Name='a' fromColour='1 2 3'/></L>", "SLabel 1 has no toValue"),
        ("<L><SLabel fromColour='1 2 3' toValue='0'/></L>", "SLabel 1 has no Name"),
        ("<L><SLabel Name='a' fromColour='1,2,3' toValue='0'/></L>", "colour '1,2,3'"),
        ("<L><SLabel Name='a' fromColour='1 2' toValue='0'/></L>", "colour .1, 2. is not"),
        ("<L><SLabel Name='a' fromColour='1 2 300' toValue='0'/></L>", "colour .1, 2, 300. is not"),
        ("<L><SLabel Name='a' fromColour='1 2 3' toValue='256'/></L>", "toValue '256'"),
        ("<L><SLabel Name='a' fromColour='1 2 3' toValue='-1'/></L>", "toValue '-1'"),
        ("<L><SLabel Name='a' fromColour='1 2 3' toValue='1 2'/></L>", "toValue '1 2'"),
        ("<L><SLabel Name='a' fromColour='1 2 3' toValue='²'/></L>", "toValue '²'"),
        (
            "<L><SLabel Name='a' fromColour='1 2 3' toValue='0'/><SLabel Name='a' fromColour='1 2 3' toValue='1'/></L>",
            "both 'a'",
        ),
        ('<!DOCTYPE L [<!ENTITY a "aa">]><L>&a;</L>', "document type"),
        ('<!DOCTYPE L SYSTEM "file:///etc/passwd"><L/>', "document type"),
        ('<?xml version="1.0" encoding="unheard-of"?><L/>', "is not XML"),
    ],
)
def test_invalid_xml_entry_is_named(tmp_path: Path, text: str, reason: str) -> None:
    """Entities are rejected because they can exhaust memory."""
    path = write_file(tmp_path, "labels.xml", text)
    with pytest.raises(LabelsError, match=reason) as raised:
        read_labels(path)
    assert str(path) in str(raised.value)


def test_unreadable_and_oversized_files_are_rejected(tmp_path: Path) -> None:
    """The error contains the reason from the operating system; a user may give a bag by mistake."""
    with pytest.raises(LabelsError, match="No such file"):
        read_labels(tmp_path / "nowhere.yaml")
    with pytest.raises(LabelsError, match="is not a file"):
        read_labels(tmp_path)
    path = write_file(tmp_path, "labels.yaml", b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(LabelsError, match="not a label file"):
        read_labels(path)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"names": ["a"]},
        {"names": "a", "colours": [[1, 2, 3]]},
        {"names": ["a", "b"], "colours": [[1, 2, 3]]},
        {"names": [], "colours": []},
        {"names": [f"class-{place}" for place in range(1025)], "colours": [[1, 2, 3]] * 1025},
        {"names": ["a", "a"], "colours": [[1, 2, 3]] * 2},
        {"names": [1], "colours": [[1, 2, 3]]},
        {"names": ["a" * 65], "colours": [[1, 2, 3]]},
        {"names": ["a"], "colours": [[1, 2, -3]]},
        {"names": ["a"], "colours": [[1, 2, 3.0]]},
        {"names": ["a"], "colours": ["123"]},
        {"names": ["a"], "colours": [b"123"]},
    ],
)
def test_invalid_received_labels_are_rejected(value: object) -> None:
    """Names become file names and table rows; ids become array indices."""
    status = msgpack.unpackb(pack_status(NodeStatus(NodeState.ONLINE, "s1", cards=(CARD,))))
    status["cards"][0]["labels"] = value
    with pytest.raises(MessageError, match=r"labels|exceeds"):
        unpack_status(msgpack.packb(status))


def test_mask_is_painted_in_the_class_colours() -> None:
    """Ids without a label are black."""
    mask = np.array([[0, 1, 2], [255, 1, 0]], np.uint8)
    painted = colourise(mask, TWO)
    road, car, black = [128, 64, 128], [0, 0, 142], [0, 0, 0]
    assert painted.tolist() == [[road, car, black], [black, car, road]]
    assert painted.dtype == np.uint8


def test_overlay_blends_image_and_mask() -> None:
    """Opacity 0 gives the image, 1 the coloured mask and 0.5 their mean."""
    rgb = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    mask = np.random.default_rng(1).integers(0, 2, (6, 8), dtype=np.uint8)
    painted = colourise(mask, TWO)
    assert np.array_equal(overlay(rgb, mask, TWO, 0.0), rgb)
    assert np.array_equal(overlay(rgb, mask, TWO, 1.0), painted)
    mean = (rgb.astype(np.float64) + painted) / 2
    assert np.abs(overlay(rgb, mask, TWO, 0.5) - mean).max() <= 0.5
