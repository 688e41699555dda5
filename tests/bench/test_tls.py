from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.harness import BenchRun
from bench.tls import SIZES, TlsPlan, measure, tls


@pytest.mark.mosquitto
def test_both_brokers_carry_every_frame(tmp_path: Path) -> None:
    """One broker uses TLS, the other does not, and every message is answered."""
    with BenchRun() as run:
        result = measure(TlsPlan(models=tmp_path, rounds=1, frames=0, messages=8), run)
    assert result["cipher"].startswith("TLSv1.3 TLS_")
    assert result["journey"] is None
    assert result["bus"].keys() == SIZES.keys()
    for records in result["bus"].values():
        for record in records.values():
            assert min(record["plain"], record["tls"], record["ratio"]) > 0


def test_one_frame_per_round_is_rejected_before_anything_runs() -> None:
    """A rate needs two frames."""
    ended = CliRunner().invoke(tls, ["--frames", "1"])
    assert ended.exit_code == 2
    assert "give 2 or more, or 0 for the broker alone" in ended.output
