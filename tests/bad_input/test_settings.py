from collections.abc import Callable
from pathlib import Path

import pytest


def test_unknown_configuration_key_is_reported_with_the_nearest(fails: Callable[..., str], tmp_path: Path) -> None:
    """Covers a typing error in a configuration file."""
    (tmp_path / "edge.yaml").write_text("vehicel: car\n")
    assert "vehicel: unknown key: did you mean vehicle?" in fails(
        "edge", "play", tmp_path, "--config", tmp_path / "edge.yaml"
    )


def test_invalid_configuration_value_names_file_and_key(fails: Callable[..., str], tmp_path: Path) -> None:
    """The user must change the file, not the command line."""
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
        ("--codec", "gif"),
        ("--model-version", "../1"),
        ("--broker", "http://127.0.0.1"),
        ("--config", "/nowhere/edge.yaml"),
        ("--nonsense", "1"),
    ],
)
def test_invalid_flag_value_is_a_usage_error(
    usage_error: Callable[..., str], tmp_path: Path, flag: str, value: str
) -> None:
    """The exit code is 2, and the error names the flag."""
    assert flag in usage_error("edge", "play", tmp_path, flag, value)


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (("--arrivals", "poisson"), "--arrivals: poisson needs --arrival-rate"),
        (("--no-retry", "--retry-after-ms", "5"), "--retry-after-ms: every frame is sent only once (see --no-retry)"),
        (("--no-sinks", "--sink", "png"), "--sink: --no-sinks writes no results: leave one of the two out"),
        (("--tls-ca", __file__), "--tls-ca: mqtt://127.0.0.1:1883 has no TLS: set --broker to mqtts://"),
        (("--queue", "2", "--closed-loop"), "--queue: a closed loop drops no frame"),
        (("--transport", "grpc"), "--transport: grpc needs --worker-address, HOST:PORT"),
        (("--transport", "grpc", "--worker-address", "cloud-1"), "--worker-address: 'cloud-1': the port is missing"),
    ],
)
def test_conflicting_flags_are_named_as_flags(
    usage_error: Callable[..., str], tmp_path: Path, flags: tuple[str, ...], error: str
) -> None:
    """The user may not know the keys of the configuration file."""
    assert error in usage_error("edge", "play", tmp_path, *flags)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("window: 0", "window: give at least 1 (given 0)"),
        ("rate: 2000000", "rate: give at most 1000000 (given 2000000)"),
        ("rate: fast", "rate: give a number (given 'fast')"),
        ("frames: 1.5", "frames: give a whole number (given 1.5)"),
        ("retry: maybe", "retry: give true or false (given 'maybe')"),
        ("topics: /camera", "topics: give a list, such as [a, b] (given '/camera')"),
        ("model_version: ../1", "model_version: use 1 to 64 of A-Z a-z 0-9 _ - . without a leading dot (given '../1')"),
        ("broker: 5", "broker: give text, in quotes if it is a number (given 5)"),
        ("- window: 1", "is a list or a single value instead of a map of keys to values"),
    ],
)
def test_a_wrong_value_of_a_file_is_answered_with_what_to_give(
    fails: Callable[..., str], tmp_path: Path, line: str, problem: str
) -> None:
    """The writer of the file knows no types of Python."""
    file = tmp_path / "edge.yaml"
    file.write_text(line)
    assert f"{file}: {problem}" in fails("edge", "play", tmp_path, "--config", file)


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (("cloud", "serve", "--device", "cuda"), "--device: use auto, cpu or gpu:N (given 'cuda')"),
        (("cloud", "control", "w", "list", "--version", "3"), "--version is the version of a MODEL: name the model"),
        (("batch", ".", "--model", "m", "--out", "o", "--device", "gpu:x"), "--device: use auto, cpu or gpu:N"),
        (("batch", ".", "--model", "m", "--out", "o", "--model-version", ".1"), "--model-version: use 1 to 64 of A-Z"),
        (("send", ".", "--nodes", "http://host:80"), "'http://host:80': this is a URL: write HOST:PORT"),
    ],
)
def test_a_wrong_value_is_refused_before_the_work(
    usage_error: Callable[..., str], command: tuple[str, ...], problem: str
) -> None:
    """Loading the models of a worker takes a minute, and reading a library longer."""
    assert problem in usage_error(*command)


def test_conflict_of_flag_and_file_names_both(usage_error: Callable[..., str], tmp_path: Path) -> None:
    """The error uses the key of the file and the flag of the command line."""
    file = tmp_path / "edge.yaml"
    file.write_text("closed_loop: true\n")
    error = usage_error("edge", "play", tmp_path, "--config", file, "--arrivals", "uniform", "--arrival-rate", "5")
    assert "--arrivals: a closed loop waits for answers" in error
    file.write_text("retry_after_ms: 5\n")
    assert "retry_after_ms: every frame is sent only once (see --no-retry)" in usage_error(
        "edge", "play", tmp_path, "--config", file, "--no-retry"
    )


@pytest.mark.parametrize("name", ["a/b", "+", "#", "ä", "", "x" * 65])
def test_invalid_name_is_rejected_before_connecting(
    usage_error: Callable[..., str], image_folder: Callable[[int], Path], name: str
) -> None:
    """Covers vehicle and model names."""
    source = image_folder(1)
    for flag in ("--vehicle", "--model"):
        error = usage_error("edge", "play", source, flag, name)
        assert f"{flag}: " in error
        assert "is not allowed: use 1 to 64 of A-Z a-z 0-9 _ -" in error
        error = usage_error("send", source, "--nodes", "127.0.0.1:1", flag, name)
        assert f"{flag}: " in error


def test_invalid_worker_name_is_rejected_before_loading_models(usage_error: Callable[..., str], tmp_path: Path) -> None:
    """The name would be part of topics."""
    assert "--worker: worker 'a/b' is not allowed" in usage_error(
        "cloud", "serve", "--worker", "a/b", "--models", tmp_path
    )


def test_report_of_a_folder_without_a_run_is_rejected(fails: Callable[..., str], tmp_path: Path) -> None:
    """The error is a single line."""
    assert "latency.csv cannot be read" in fails("report", tmp_path)
    assert "give the folder of a run" in fails("report", tmp_path, "--repair")
