import io
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from ops.processes.child import BenchError, Child, ChildTimeoutError, serve

# A child that multiplies the requested number.
_MODULE = """
from ops.processes.child import serve
serve(lambda factor: lambda request: request * factor)
"""


@pytest.fixture(name="module")
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "factor_child.py").write_text(_MODULE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    return "factor_child"


def test_requests_are_answered_in_order(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A reply is taken for that of the last request."""
    monkeypatch.setattr("sys.argv", ["child", '{"factor": 10}'])
    monkeypatch.setattr("sys.stdin", io.StringIO("1\n2\n"))
    serve(lambda factor: lambda request: request * factor)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == ["ready", 10, 20]


def test_a_late_reply_is_not_taken_for_a_later_one(module: str) -> None:
    """A fault test stops a child, and continues it later."""
    with Child(module, {"factor": 2}) as child:
        assert child.wait() == "ready"
        os.kill(child.pid, signal.SIGSTOP)
        with pytest.raises(ChildTimeoutError, match=r"factor_child did not reply within 0.1 s: is it stopped\?"):
            child.ask(1, timeout_s=0.1)
        os.kill(child.pid, signal.SIGCONT)
        assert child.ask(5) == 10


def test_the_error_of_a_child_that_ended_is_quoted(module: str, tmp_path: Path) -> None:
    """The error must name the reason, not the broken pipe; with a log, it is in the log as well."""
    with Child(module, {"factor": 2}, log=tmp_path / "child.log") as child:
        child.wait()
        with pytest.raises(BenchError, match="factor_child has ended with code 1: TypeError"):
            child.ask(None)
        with pytest.raises(BenchError, match="has ended with code 1: TypeError"):
            child.ask(1)
    assert "Traceback" in (tmp_path / "child.log").read_text()
    with Child("bench.nothing", {}) as missing, pytest.raises(BenchError, match="No module named"):
        missing.wait()
