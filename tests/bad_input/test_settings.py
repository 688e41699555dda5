from collections.abc import Callable
from pathlib import Path

import pytest

_GATE = ("--gate", "mse")
_CASCADE = ("--local-model", "tiny", "--cascade")


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--rate", "0"), "--rate"),
        (("--rate", "nan"), "--rate"),
        (("--window", "0"), "--window"),
        (("--deadline-ms", "inf"), "--deadline-ms"),
        (("--frames", "-1"), "--frames"),
        (("--quality", "101"), "--quality"),
        (("--codec", "gif"), "--codec"),
        (("--model-version", "../1"), "--model-version"),
        (("--broker", "http://127.0.0.1"), "--broker"),
        (("--config", "/nowhere/edge.yaml"), "--config"),
        (("--nonsense", "1"), "--nonsense"),
        (("--gate", "ssim"), "--gate"),
        ((*_GATE, "--gate-threshold", "nan"), "--gate-threshold"),
        ((*_GATE, "--gate-threshold", "inf"), "--gate-threshold"),
        ((*_GATE, "--gate-threshold", "automatic"), "--gate-threshold"),
        ((*_GATE, "--reuse-frames", "0"), "--reuse-frames"),
        ((*_GATE, "--reuse-ms", "nan"), "--reuse-ms"),
        ((*_GATE, "--reuse-ms", "0"), "--reuse-ms"),
        ((*_CASCADE, "--c-low", "-0.1"), "--c-low"),
        ((*_CASCADE, "--c-high", "1.5"), "--c-high"),
        ((*_CASCADE, "--c-high", "nan"), "--c-high"),
        (("--local-model", "../tiny"), "--local-model"),
        (("--local-model", "tiny", "--local-timeout-ms", "0"), "--local-timeout-ms"),
        (("--local-model", "tiny", "--local-timeout-ms", "inf"), "--local-timeout-ms"),
        (("--local-model", "tiny", "--local-threads", "0"), "--local-threads"),
        ((*_GATE, "--tuning", "/nowhere/tuning.yaml"), "--tuning"),
        ((*_GATE, "--tuning", "/"), "--tuning"),
    ],
)
def test_invalid_flag_value_is_a_usage_error(
    usage_error: Callable[..., str], tmp_path: Path, flags: tuple[str, ...], named: str
) -> None:
    """The exit code is 2, the error names the flag, and no folder is created."""
    out = tmp_path / "run"
    assert named in usage_error("edge", "play", tmp_path, "--out", out, *flags)
    assert not out.exists()


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
        ((*_GATE, "--gate-threshold", "-1"), "-1 is no distance by mse: give 0 to 65025, or auto"),
        ((*_GATE, "--gate-threshold", "65026"), "65026 is no distance by mse"),
        (("--gate", "pixels", "--gate-threshold", "101"), "101 is no distance by pixels: give 0 to 100, or auto"),
        (("--gate-threshold", "5"), "--gate-threshold: only a gate compares frames: add --gate, or leave it out"),
        (("--reuse-frames", "5"), "--reuse-frames: only a gate compares frames: add --gate"),
        (("--reuse-ms", "5"), "--reuse-ms: only a gate compares frames: add --gate"),
        (("--cascade",), "--cascade: there is no model on the vehicle: add --local-model"),
        (("--local-timeout-ms", "5"), "--local-timeout-ms: there is no model on the vehicle: add --local-model"),
        (("--local-model", "tiny", "--c-low", "0.1"), "--c-low: only a cascade has thresholds: add --cascade"),
        ((*_CASCADE, "--c-low", "0.9", "--c-high", "0.1"), "c_low 0.9 and c_high 0.1: give 0 <= c_low < c_high <= 1"),
        ((*_CASCADE, "--c-low", "0.5", "--c-high", "0.5"), "c_low 0.5 and c_high 0.5"),
        (("--tuning", __file__), "--tuning: nothing uses it: add --gate or --local-model"),
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
        ("vehicel: car", "vehicel: unknown key: did you mean vehicle?"),
        ("vehicle: a/b", "vehicle: vehicle 'a/b' is not allowed"),
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
