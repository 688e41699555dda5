import json

from click.testing import CliRunner

from bench.performance.report_cost import report


def test_a_report_is_measured_in_a_process_of_its_own() -> None:
    """Its memory is then its own, and not that of whoever made up the rows."""
    done = CliRunner().invoke(report, ["--rows", "50", "--rounds", "1", "--json"], catch_exceptions=False)
    result = json.loads(done.stdout)
    assert (result["rows"], result["targets"]) == (50, None)
    (only,) = result["rounds"]
    assert only == result["worst"]
    assert only["page_mb"] > 1  # It carries Plotly.
    assert 0 < only["peak_memory_mb"] < 10_000
