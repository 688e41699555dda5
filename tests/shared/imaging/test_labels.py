from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.imaging.labels import MAX_FILE_BYTES, Labels, LabelsError, colourise, overlay, read_labels

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


def written(folder: Path, name: str, text: str | bytes) -> Path:
    """A label file with this text."""
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_the_twelve_classes_are_the_usual_ones() -> None:
    """Every model, bag and picture of ours leans on these ids and colours."""
    labels = read_labels(ROOT / "configs/labels/street12.yaml")
    assert labels.names == (
        *("road", "sidewalk", "building", "pole", "vegetation", "sky"),
        *("person", "rider", "car", "truck", "bus", "none"),
    )
    assert labels.colours[:3] == ((128, 64, 128), (244, 35, 232), (70, 70, 70))
    assert labels.colours[8] == (0, 0, 142)


@pytest.mark.parametrize("text", [ELEMENTS, ATTRIBUTES], ids=["elements", "attributes"])
def test_slabel_xml_is_read_in_both_spellings(tmp_path: Path, text: str) -> None:
    """Several colours may map to one id, the first wins, and ids nobody names still need a place."""
    labels = read_labels(written(tmp_path, "labels.xml", text))
    assert labels.names == ("road", "unused-1", "unused-2", "car")
    assert labels.colours == ((128, 64, 128), (0, 0, 0), (0, 0, 0), (0, 0, 142))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "holds no list"),
        ("road", "holds no list"),
        ("[", "is no YAML"),
        ("[" * 50_000, "is no YAML"),
        (b"- \x80", "is no YAML"),
        ("[]", "0 classes"),
        ("- {name: road, colour: [1, 2, 3]}\n" * 1025, "1025 classes"),
        ("- road", "class 0 is 'road'"),
        ("- {name: road}", "class 0 is"),
        ("- {name: road, color: [1, 2, 3]}", "write {name: …, colour:"),
        ("- {name: road, colour: [1, 2, 3], id: 3}", "class 0 is"),
        ("- {name: yes, colour: [1, 2, 3]}", "name True"),
        ("- {name: '', colour: [1, 2, 3]}", "name ''"),
        ("- {name: road, colour: [1, 2]}", r"colour \[1, 2\]"),
        ("- {name: road, colour: [1, 2, 256]}", r"colour \[1, 2, 256\]"),
        ("- {name: road, colour: [1, 2, yes]}", r"colour \[1, 2, True\]"),
        ("- {name: road, colour: '1 2 3'}", "colour '1 2 3'"),
        (
            "- {name: road, colour: [1, 2, 3]}\n- {name: road, colour: [3, 2, 1]}",
            "classes 0 and 1 are both 'road': rename one",
        ),
        ("- &a {name: road, colour: [1, 2, 3]}\n- *a", "aliases are not used here"),
        ("- !!python/object/apply:os.getpid []", "is no YAML"),
    ],
)
def test_a_bad_yaml_entry_is_named(tmp_path: Path, text: str | bytes, reason: str) -> None:
    """Which file, which entry, what is wrong: a label file is written by hand."""
    path = written(tmp_path, "labels.yaml", text)
    with pytest.raises(LabelsError, match=reason) as raised:
        read_labels(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is no XML"),
        ("<Labels>", "is no XML"),
        ("<Labels/>", "holds no SLabel"),
        ("<L><SLabel Name='a' toValue='0'/></L>", "SLabel 1 has no fromColour"),
        ("<L><SLabel Name='a' fromColour='1 2 3'/></L>", "SLabel 1 has no toValue"),
        ("<L><SLabel fromColour='1 2 3' toValue='0'/></L>", "SLabel 1 has no Name"),
        ("<L><SLabel Name='a' fromColour='1,2,3' toValue='0'/></L>", "colour '1,2,3'"),
        ("<L><SLabel Name='a' fromColour='1 2' toValue='0'/></L>", r"colour \[1, 2\]"),
        ("<L><SLabel Name='a' fromColour='1 2 300' toValue='0'/></L>", r"colour \[1, 2, 300\]"),
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
        ('<?xml version="1.0" encoding="unheard-of"?><L/>', "is no XML"),
    ],
)
def test_a_bad_xml_entry_is_named(tmp_path: Path, text: str, reason: str) -> None:
    """The same in XML, where entities are also a way to fill the memory."""
    path = written(tmp_path, "labels.xml", text)
    with pytest.raises(LabelsError, match=reason) as raised:
        read_labels(path)
    assert str(path) in str(raised.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """With the system's reason."""
    with pytest.raises(LabelsError, match="No such file"):
        read_labels(tmp_path / "nowhere.yaml")
    with pytest.raises(LabelsError, match="Is a directory"):
        read_labels(tmp_path)


def test_a_file_too_large_is_refused(tmp_path: Path) -> None:
    """Somebody gave the bag in place of the labels."""
    path = written(tmp_path, "labels.yaml", b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(LabelsError, match="no label file"):
        read_labels(path)


@given(
    text=st.text(max_size=60) | st.from_regex(r"(- \{name: \w+, colour: \[\d+, \d+, \d+\]\}\n){1,3}", fullmatch=True)
)
def test_any_yaml_text_is_labels_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """Nothing but our own error may leave the reader."""
    path = written(tmp_path_factory.getbasetemp(), "any.yaml", text.encode("utf-8", "surrogatepass"))
    try:
        labels = read_labels(path)
    except LabelsError:
        return
    assert Labels.from_wire(labels.to_wire()) == labels


@given(fields=st.lists(st.tuples(*[st.text("<>&0123456789 a", max_size=9)] * 3), max_size=4))
def test_any_xml_text_is_labels_or_refused(
    tmp_path_factory: pytest.TempPathFactory, fields: list[tuple[str, str, str]]
) -> None:
    """The same for the other reader."""
    entries = [
        f"<SLabel><Name>{n}</Name><fromColour>{c}</fromColour><toValue>{v}</toValue></SLabel>" for n, c, v in fields
    ]
    path = written(tmp_path_factory.getbasetemp(), "any.xml", f"<L>{''.join(entries)}</L>")
    try:
        labels = read_labels(path)
    except LabelsError:
        return
    assert Labels.from_wire(labels.to_wire()) == labels


def test_labels_survive_the_wire() -> None:
    """A vehicle takes them from the worker's card, not from a file of its own."""
    assert Labels.from_wire(TWO.to_wire()) == TWO


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
        {"names": ["a\n"], "colours": [[1, 2, 3]]},
        {"names": ["a" * 65], "colours": [[1, 2, 3]]},
        {"names": ["a"], "colours": [[1, 2, -3]]},
        {"names": ["a"], "colours": [[1, 2, 3.0]]},
        {"names": ["a"], "colours": ["123"]},
        {"names": ["a"], "colours": [b"123"]},
    ],
)
def test_labels_from_the_wire_are_checked(value: object) -> None:
    """They become file names, table rows and array indices."""
    with pytest.raises(LabelsError):
        Labels.from_wire(value)


def test_a_mask_is_painted_in_its_colours() -> None:
    """Red, green, blue, in this order, and black for an id without a label."""
    mask = np.array([[0, 1, 2], [255, 1, 0]], np.uint8)
    painted = colourise(mask, TWO)
    road, car, black = [128, 64, 128], [0, 0, 142], [0, 0, 0]
    assert painted.tolist() == [[road, car, black], [black, car, road]]
    assert painted.dtype == np.uint8


def test_an_overlay_lies_between_picture_and_mask() -> None:
    """Opacity 0 is the picture, 1 the mask, and half the mean of both."""
    rgb = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    mask = np.random.default_rng(1).integers(0, 2, (6, 8), dtype=np.uint8)
    painted = colourise(mask, TWO)
    assert np.array_equal(overlay(rgb, mask, TWO, 0.0), rgb)
    assert np.array_equal(overlay(rgb, mask, TWO, 1.0), painted)
    mean = (rgb.astype(np.float64) + painted) / 2
    assert np.abs(overlay(rgb, mask, TWO, 0.5) - mean).max() <= 0.5
