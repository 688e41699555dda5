"""The end of `skylane cloud serve` by an error, in the format for log collectors, which drop what is no JSON line."""

import json
from pathlib import Path
from typing import Any

import pytest

from cloud import cli


def last_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Returns the last log line of a worker without models."""
    flags = ["--broker", "mqtt://127.0.0.1:1", "--models", str(folder), "--model", "absent", "--log-format", "json"]
    with pytest.raises(SystemExit) as ended:
        cli.cloud(["serve", *flags])
    assert ended.value.code == 1
    line: dict[str, Any] = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert (line["level"], line["message"]) == ("error", "ended by an error")
    return line


def test_an_error_of_the_user_is_a_json_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other lines would be lost, and with them the reason; it needs no traceback."""
    line = last_line(tmp_path, capsys)
    assert "no model 'absent'" in line["reason"]
    assert "exception" not in line


def test_a_bug_is_a_json_line_with_its_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reason alone would not lead to its place."""

    def run(*_: object) -> None:
        raise IndexError("out of range")

    monkeypatch.setattr(cli, "run", run)
    line = last_line(tmp_path, capsys)
    assert line["reason"] == "out of range"
    assert "Traceback" in line["exception"]
