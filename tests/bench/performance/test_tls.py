from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.performance.tls import SIZES, Plan, _compared, measure, tls


def test_ratios_are_taken_round_by_round() -> None:
    """What drifts on a machine falls on both rounds of a pair; the ratio of two medians would not know."""
    compared = _compared({"plain": [10.0, 20.0, 40.0], "tls": [9.0, 19.0, 30.0]})
    assert compared["ratio_by_round"] == pytest.approx([0.9, 0.95, 0.75])
    assert (compared["plain"], compared["tls"], compared["ratio"]) == pytest.approx((20.0, 19.0, 0.9))


@pytest.mark.mosquitto
def test_both_brokers_carry_every_frame(tmp_path: Path) -> None:
    """The one really speaks TLS, the other really does not, and all that is sent comes back."""
    result = measure(Plan(models=tmp_path, rounds=1, frames=0, messages=8), lambda _: None)
    assert result["cipher"].startswith("TLSv1.3 TLS_")
    assert result["journey"] is None
    assert result["bus"].keys() == SIZES.keys()
    for figures in result["bus"].values():
        for figure in figures.values():
            assert min(figure["plain"], figure["tls"], figure["ratio"]) > 0


def test_one_frame_a_round_is_refused_before_anything_runs() -> None:
    """A rate takes two frames; the bench used to end with a traceback after its first round."""
    ended = CliRunner().invoke(tls, ["--frames", "1"])
    assert ended.exit_code == 2
    assert "give 2 or more, or 0 for the bus alone" in ended.output
