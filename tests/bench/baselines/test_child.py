import io
import json

import pytest

from bench.baselines.child import Child, serve
from bench.load.playback import BenchError


def test_errands_are_answered_in_order(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The times that come back are taken for those of the frame that was just asked for."""
    monkeypatch.setattr("sys.stdin", io.StringIO('{"frame": 1}\n{"frame": 2}\n'))
    serve(lambda errand: {"total": errand["frame"] * 10})
    ready, *answers = capsys.readouterr().out.splitlines()
    assert ready == "ready"
    assert [json.loads(answer) for answer in answers] == [{"total": 10}, {"total": 20}]


def test_a_process_that_ends_tells_its_last_words() -> None:
    """Half a minute into a bench, a reason is worth more than a broken pipe."""
    with Child("bench.baselines.mqtt.vehicle", port=1) as child, pytest.raises(BenchError, match="Missing option"):
        child.wait()


def test_an_errand_for_a_process_that_is_gone_says_so() -> None:
    """As above, where it ended between two errands."""
    with Child("bench.baselines.nothing") as child:
        with pytest.raises(BenchError, match="No module named"):
            child.wait()
        with pytest.raises(BenchError, match="No module named"):
            child.ask(frame=1)
