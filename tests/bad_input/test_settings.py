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


def test_a_configuration_with_a_bad_value_names_the_file_and_the_key(fails: Callable[..., str], tmp_path: Path) -> None:
    """The command line was right: the file is what has to be changed."""
    file = tmp_path / "edge.yaml"
    file.write_text("quality: 101\n")
    assert f"{file}: quality: " in fails("edge", "play", tmp_path, "--config", file)
    file.write_text("vehicle: a/b\n")
    assert f"{file}: vehicle: vehicle 'a/b' is not allowed" in fails("edge", "play", tmp_path, "--config", file)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--rate", "0"),
        ("--rate", "nan"),
        ("--window", "0"),
        ("--deadline-ms", "inf"),
        ("--frames", "-1"),
        ("--quality", "101"),
        ("--qos", "two"),
        ("--codec", "gif"),
        ("--model-version", "../1"),
        ("--broker", "http://127.0.0.1"),
        ("--config", "/nowhere/edge.yaml"),
        ("--nonsense", "1"),
    ],
)
def test_a_flag_that_cannot_be_used_is_a_usage_error(
    misused: Callable[..., str], tmp_path: Path, flag: str, value: str
) -> None:
    """Exit code 2, the usage and the name of the flag, whoever checks the value."""
    assert flag in misused("edge", "play", tmp_path, flag, value)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--arrivals", "poisson"), "--arrivals: poisson needs --arrival-rate, the frames"),
        (("--no-retry", "--retry-after-ms", "5"), "--retry-after-ms: nothing is sent again without --no-retry"),
        (("--queue", "2", "--closed-loop"), "--queue: in a closed loop no frame is given up"),
        (("--transport", "grpc"), "--transport: grpc needs --worker-address, HOST:PORT"),
        (("--transport", "grpc", "--worker-address", "cloud-1"), "--worker-address: 'cloud-1': the port is missing"),
    ],
)
def test_flags_that_contradict_each_other_are_named_as_flags(
    misused: Callable[..., str], tmp_path: Path, flags: tuple[str, ...], told: str
) -> None:
    """Not as the keys of a configuration file, which the user may never have seen."""
    assert told in misused("edge", "play", tmp_path, *flags)


def test_a_flag_that_contradicts_the_file_names_both(misused: Callable[..., str], tmp_path: Path) -> None:
    """The key is what stands in the file, the flag what was typed."""
    file = tmp_path / "edge.yaml"
    file.write_text("closed_loop: true\n")
    told = misused("edge", "play", tmp_path, "--config", file, "--arrivals", "uniform", "--arrival-rate", "5")
    assert "--arrivals: a closed loop waits for answers" in told
    file.write_text("retry_after_ms: 5\n")
    assert "retry_after_ms: nothing is sent again" in misused("edge", "play", tmp_path, "--config", file, "--no-retry")


@pytest.mark.parametrize("name", ["a/b", "+", "#", "ä", "", "x" * 65])
def test_a_name_with_forbidden_characters(
    misused: Callable[..., str], pictures: Callable[[int], Path], name: str
) -> None:
    """Before anything is connected."""
    source = pictures(1)
    for flag in ("--vehicle", "--model"):
        told = misused("edge", "play", source, flag, name)
        assert f"{flag}: " in told
        assert "is not allowed: use 1 to 64 of A-Z a-z 0-9 _ -" in told
        told = misused("send", source, "--nodes", "127.0.0.1:1", flag, name)
        assert f"Invalid value for '{flag}'" in told


def test_a_worker_name_with_forbidden_characters(misused: Callable[..., str], tmp_path: Path) -> None:
    """Before a model is loaded."""
    assert "--worker: worker 'a/b' is not allowed" in misused("cloud", "serve", "--worker", "a/b", "--models", tmp_path)


def test_a_report_of_what_is_no_run(fails: Callable[..., str], tmp_path: Path) -> None:
    """One line."""
    assert "latency.csv cannot be read" in fails("report", tmp_path)
    assert "give the folder of a run" in fails("report", tmp_path, "--repair")
