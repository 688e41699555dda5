import json

from click.testing import CliRunner

from bench.report_cost import report


def test_a_report_is_measured_in_a_child_process() -> None:
    """Its peak memory must not include that of the process that wrote the rows."""
    done = CliRunner().invoke(report, ["--rows", "50", "--rounds", "1", "--json"], catch_exceptions=False)
    result = json.loads(done.stdout)
    assert (result["rows"], result["targets"]) == (50, None)
    (only,) = result["rounds"]
    assert only == result["worst"]
    assert only["page_mb"] > 1  # The page contains Plotly.
    assert 0 < only["peak_memory_mb"] < 10_000
