import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from shared.config import MAX_YAML_BYTES, MAX_YAML_NODES, ConfigError, Section, load_document, read_yaml


class Window(Section):
    """A nested section."""

    size: int = 4
    deadline_ms: float | None = None


class Edge(Section):
    """A section that holds others in each way a section can."""

    vehicle: str
    window: Window = Window()
    windows: tuple[Window, ...] = ()
    by_camera: dict[str, Window] = Field(default_factory=dict)


def _written(folder: Path, text: str | bytes) -> Path:
    path = folder / "edge.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def _refused(folder: Path, text: str | bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        read_yaml(_written(folder, text), Edge)
    message = str(caught.value)
    assert "edge.yaml" in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("number", "problem"),
    [
        ("1:30", "in base 60: put it into quotes"),
        ("1:30.5", "in base 60: put it into quotes"),
        ("!!int 1:30", "in base 60: put it into quotes"),
        (":".join(["59"] * 200_000), "in base 60"),
        ("9" * 5000, "a number of 5000 characters: 40 are allowed"),
        ("0x" + "f" * 500_000, "a number of 500002 characters: 40 are allowed"),
        ("!!float " + "1" * 5000, "a number of 5000 characters"),
        ("!!int x", "invalid literal"),
    ],
)
def test_a_number_that_nobody_means_is_refused_at_once(tmp_path: Path, number: str, problem: str) -> None:
    """In base 60 a megabyte took nine seconds to read, and could not be shown afterwards."""
    assert problem in _refused(tmp_path, f"vehicle: v1\nwindow: {{size: {number}}}\n")


def test_a_valid_file_becomes_a_frozen_section(tmp_path: Path) -> None:
    """What is read is passed down by reference: nobody may change it on the way."""
    edge = read_yaml(_written(tmp_path, "vehicle: v1\nwindow: {size: 2}\n"), Edge)
    assert edge.vehicle == "v1"
    assert edge.window == Window(size=2)
    with pytest.raises(ValueError, match="frozen"):
        edge.vehicle = "v2"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("vehicle: v\nwindow: {sise: 2}", "window.sise"),
        ("vehicle: v\nwindows: [{}, {sise: 2}]", "windows.1.sise"),
        ("vehicle: v\nby_camera: {left: {sise: 2}}", "by_camera.left.sise"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(tmp_path: Path, text: str, key: str) -> None:
    """A typo that is silently ignored costs an afternoon."""
    message = _refused(tmp_path, text)
    assert f" {key}: unknown key" in message
    assert "did you mean size?" in message


def test_an_unknown_key_speaks_before_the_missing_one_it_was_meant_to_be(tmp_path: Path) -> None:
    """`vehicel: v` is both; only the first says what to do."""
    message = _refused(tmp_path, "vehicel: v")
    assert "did you mean vehicle?" in message
    assert "1 more" in message


def test_a_wrong_type_names_the_key_and_what_was_given(tmp_path: Path) -> None:
    """The user sees what the program saw."""
    message = _refused(tmp_path, "vehicle: v\nwindow: {size: many}")
    assert "window.size" in message
    assert "'many'" in message


def test_a_missing_key_says_so(tmp_path: Path) -> None:
    """An empty file is a file without its required keys, no crash."""
    assert "vehicle: is missing" in _refused(tmp_path, "")


def test_a_repeated_key_is_refused(tmp_path: Path) -> None:
    """YAML would take the last one and hide the first."""
    assert "'vehicle' is repeated" in _refused(tmp_path, "vehicle: a\nvehicle: b\n")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("- a\n- b\n", "a map of keys to values"),
        ("vehicle: [unclosed\n", "line 2"),
        (b"\x00\x01\x02", "not valid YAML"),
        (b"\xff\xfe\xff", "not valid YAML"),
        ("vehicle: !!python/object/apply:os.system [true]\n", "not valid YAML"),
        ("vehicle: &a v\nwindow: *a\n", "aliases"),
        ("vehicle: " + "[" * 5000, "nested deeper"),
        ("? [a, b]\n: c\n", "not valid YAML"),
        ("#" * (MAX_YAML_BYTES + 1), "larger than"),
    ],
)
def test_a_hostile_file_is_refused_with_a_reason(tmp_path: Path, text: str | bytes, reason: str) -> None:
    """A configuration may come from anywhere; it must neither run nor exhaust anything."""
    assert reason in _refused(tmp_path, text)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    """The path in the message is what the user mistyped."""
    with pytest.raises(ConfigError, match=r"absent\.yaml: cannot be read \(No such file"):
        read_yaml(tmp_path / "absent.yaml", Edge)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_yaml(tmp_path, Edge)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    """Nothing but a ConfigError may leave the reader."""
    path = tmp_path_factory.getbasetemp() / "arbitrary.yaml"
    path.write_bytes(text)
    try:
        load_document(path)
        message = ""
    except ConfigError as error:
        message = str(error)
    assert "\n" not in message


def test_more_values_than_anybody_writes_are_refused_before_they_take_a_minute(tmp_path: Path) -> None:
    """A megabyte of YAML can be half a million values: 35 seconds and 350 MB."""
    text = "[" + "a," * (MAX_YAML_BYTES // 2 - 2) + "]"
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ConfigError, match=f"more than {MAX_YAML_NODES} keys and values"):
        load_document(_written(tmp_path, text))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 100_000
