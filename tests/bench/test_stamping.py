import json

import pytest
from click.testing import CliRunner

from bench import stamping as stamping_bench
from bench.stamping import stamping


def test_every_part_of_the_stamping_is_measured() -> None:
    """The whole is the sum of the parts in the table."""
    done = CliRunner().invoke(stamping, ["--frames", "100", "--json"], catch_exceptions=False)
    result = json.loads(done.stdout)
    assert result["frames"] == 100
    assert result["whole_us"]["min"] >= sum(part["min"] for part in result["parts_us"].values()) > 0
    assert result["is_met"] == (result["whole_us"]["mean"] <= result["target_us"] == 200)


def test_the_output_states_whether_the_target_is_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean decides, because it determines the cost of a run of many frames."""
    for target_us, verdict in ((0.0, "NOT met"), (1e9, "met")):
        monkeypatch.setattr(stamping_bench, "TARGET_US", target_us)
        printed = CliRunner().invoke(stamping, ["--frames", "100"], catch_exceptions=False).stdout
        assert f"target: at most {target_us:g} µs, {verdict}" in " ".join(printed.split())
        assert "row in the CSV" in " ".join(printed.split())
