"""Flags of the gate, the local model and the cascade that cannot work: refused before anything is opened."""

from collections.abc import Callable
from pathlib import Path

import pytest

_GATE = ("--gate", "mse")
_CASCADE = ("--local-model", "tiny", "--cascade")


@pytest.mark.parametrize(
    ("flags", "named"),
    [
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
def test_a_value_out_of_range_is_a_usage_error(
    usage_error: Callable[..., str], tmp_path: Path, flags: tuple[str, ...], named: str
) -> None:
    """The error names the flag, and no folder is created."""
    out = tmp_path / "run"
    assert named in usage_error("edge", "play", tmp_path, "--out", out, *flags)
    assert not out.exists()


@pytest.mark.parametrize(
    ("flags", "error"),
    [
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
def test_flags_without_effect_or_in_the_wrong_order_are_refused(
    usage_error: Callable[..., str], tmp_path: Path, flags: tuple[str, ...], error: str
) -> None:
    """A user who forgot a flag would otherwise measure a run without what the other flag configures."""
    out = tmp_path / "run"
    assert error in usage_error("edge", "play", tmp_path, "--out", out, *flags)
    assert not out.exists()
