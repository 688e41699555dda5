"""Settings that cannot be meant: configurations, flags, names, folders."""

from collections.abc import Callable
from pathlib import Path

import pytest


def test_a_configuration_with_an_unknown_key(fails: Callable[..., str], tmp_path: Path) -> None:
    """The same for the two configuration files."""
    (tmp_path / "edge.yaml").write_text("vehicel: car\n")
    assert "vehicel: unknown key: did you mean vehicle?" in fails(
        "edge", "play", tmp_path, "--config", tmp_path / "edge.yaml"
    )


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--rate", "0"),
        ("--rate", "nan"),
        ("--window", "0"),
        ("--deadline-ms", "inf"),
        ("--frames", "-1"),
        ("--quality", "101"),
    ],
)
def test_a_flag_out_of_its_bounds_is_named(fails: Callable[..., str], tmp_path: Path, flag: str, value: str) -> None:
    """And not a traceback of the library that checks it."""
    assert flag.strip("-").replace("-", "_") in fails("edge", "play", tmp_path, flag, value)


@pytest.mark.parametrize("name", ["a/b", "+", "#", "ä", "", "x" * 65])
def test_a_name_with_forbidden_characters(
    fails: Callable[..., str], pictures: Callable[[int], Path], name: str
) -> None:
    """Before anything is connected."""
    source = pictures(1)
    for flag in ("--vehicle", "--model"):
        assert "is not allowed: use 1 to 64 of A-Z a-z 0-9 _ -" in fails("edge", "play", source, flag, name)


def test_a_worker_name_with_forbidden_characters(fails: Callable[..., str], tmp_path: Path) -> None:
    """Before a model is loaded."""
    assert "worker 'a/b' is not allowed" in fails("cloud", "serve", "--worker", "a/b", "--models", tmp_path)


def test_a_report_of_what_is_no_run(fails: Callable[..., str], tmp_path: Path) -> None:
    """One line."""
    assert "latency.csv cannot be read" in fails("report", tmp_path)
    assert "give the folder of a run" in fails("report", tmp_path, "--repair")
