import resource
from pathlib import Path

import pytest
from pydantic import Field

from shared.config import MAX_YAML_BYTES, MAX_YAML_NODES, ConfigError, Section, load_document, read_yaml


class Window(Section):
    """A nested section."""

    size: int = 4
    deadline_ms: float | None = None


class Edge(Section):
    """A section with nested sections of every kind."""

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
def test_unusual_numbers_are_refused_quickly(tmp_path: Path, number: str, problem: str) -> None:
    """Parsing a megabyte in base 60 took nine seconds."""
    assert problem in _refused(tmp_path, f"vehicle: v1\nwindow: {{size: {number}}}\n")


def test_a_valid_file_becomes_a_frozen_section(tmp_path: Path) -> None:
    """Sections are passed by reference, so they must not change."""
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
    """A mistyped key must not be ignored."""
    message = _refused(tmp_path, text)
    assert f" {key}: unknown key" in message
    assert "did you mean size?" in message


def test_an_unknown_key_is_reported_before_a_missing_one(tmp_path: Path) -> None:
    """`vehicel: v` causes both, and the unknown key explains the missing one."""
    message = _refused(tmp_path, "vehicel: v")
    assert "did you mean vehicle?" in message
    assert "1 more" in message


def test_a_wrong_type_is_reported_with_key_and_value(tmp_path: Path) -> None:
    """The message repeats the given value."""
    message = _refused(tmp_path, "vehicle: v\nwindow: {size: many}")
    assert "window.size" in message
    assert "'many'" in message


def test_a_missing_key_is_reported(tmp_path: Path) -> None:
    """An empty file lacks its required keys."""
    assert "vehicle: is missing" in _refused(tmp_path, "")


def test_a_repeated_key_is_refused(tmp_path: Path) -> None:
    """YAML would silently use the last one."""
    assert "'vehicle' is repeated" in _refused(tmp_path, "vehicle: a\nvehicle: b\n")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("- a\n- b\n", "instead of a map of keys to values"),
        ("vehicle: [unclosed\n", "line 2"),
        (b"\x00\x01\x02", "not valid YAML"),
        (b"\xff\xfe\xff", "not valid YAML"),
        (b"vehicle: c\xe4r\n", "not valid YAML: byte 11 is not text: save it as UTF-8"),
        ("vehicle: !!python/object/apply:os.system [true]\n", "not valid YAML"),
        ("vehicle: &a v\nwindow: *a\n", "aliases"),
        ("vehicle: " + "[" * 5000, "nested deeper"),
        ("? [a, b]\n: c\n", "not valid YAML"),
        ("#" * (MAX_YAML_BYTES + 1), "larger than"),
    ],
)
def test_an_invalid_or_hostile_file_is_refused(tmp_path: Path, text: str | bytes, reason: str) -> None:
    """A configuration must not run code or exhaust resources."""
    assert reason in _refused(tmp_path, text)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    """The message contains the path."""
    with pytest.raises(ConfigError, match=r"absent\.yaml: cannot be read \(No such file"):
        read_yaml(tmp_path / "absent.yaml", Edge)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_yaml(tmp_path, Edge)


def test_too_many_values_are_refused_quickly(tmp_path: Path) -> None:
    """A megabyte of YAML may hold 500,000 values, which take 35 s and 350 MB."""
    text = "[" + "a," * (MAX_YAML_BYTES // 2 - 2) + "]"
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ConfigError, match=f"more than {MAX_YAML_NODES} keys and values"):
        load_document(_written(tmp_path, text))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 100_000
