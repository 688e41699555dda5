import json

import pytest
from click.testing import CliRunner

from bench import link as link_bench
from bench.link import link


def test_the_check_measures_delays_and_bandwidths() -> None:
    """A real link adds to the delay and does not exceed the bandwidth."""
    result = link_bench.check_links(10, lambda _: None, bulk_s=0.1)
    assert [row["round_trips"] for row in result["delays"]] == [10] * 4
    assert all(row["excess_ms"]["min"] > 0 for row in result["delays"])
    assert all(row["came_mbps"] <= row["bandwidth_mbps"] for row in result["bandwidths"])
    assert "processor" in result["machine"]


def test_the_check_prints_tables_or_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """One delay and one bandwidth are measured."""
    monkeypatch.setattr(link_bench, "DELAYS_MS", ((25.0, 25.0),))
    monkeypatch.setattr(link_bench, "BANDWIDTHS_MBPS", (5.0,))
    done = CliRunner().invoke(link, ["--round-trips", "10"], catch_exceptions=False)
    assert "25 + 25" in done.stdout
    assert "5 Mbit/s requested" in done.stdout
    as_json = CliRunner().invoke(link, ["--round-trips", "10", "--json"], catch_exceptions=False)
    assert [row["bandwidth_mbps"] for row in json.loads(as_json.stdout)["bandwidths"]] == [5.0]
