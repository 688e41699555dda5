import io
import json

import pytest

from bench.baselines.child import Child, serve
from bench.harness.comparison import BenchError


def test_requests_are_answered_in_order(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A reply is taken for that of the last request."""
    monkeypatch.setattr("sys.stdin", io.StringIO('{"frame": 1}\n{"frame": 2}\n'))
    serve(lambda request: {"total": request["frame"] * 10})
    ready, *replies = capsys.readouterr().out.splitlines()
    assert ready == "ready"
    assert [json.loads(reply) for reply in replies] == [{"total": 10}, {"total": 20}]


def test_a_child_that_ends_at_its_start_reports_its_last_error() -> None:
    """The error must name the reason, not the broken pipe."""
    with Child("bench.baselines.mqtt.vehicle", port=1) as child, pytest.raises(BenchError, match="Missing option"):
        child.wait()


def test_a_request_to_an_ended_child_reports_its_last_error() -> None:
    """The child ended before the request."""
    with Child("bench.baselines.nothing") as child:
        with pytest.raises(BenchError, match="No module named"):
            child.wait()
        with pytest.raises(BenchError, match="No module named"):
            child.ask(frame=1)
