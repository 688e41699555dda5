"""What native libraries write to standard error, with JSON log lines."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from shared.logs import LogFormat

_MODEL = Path(__file__).parents[2] / "models" / "road-tiny" / "model.tflite"
_PREPARE = """
import os, sys
from shared.logs import configure_logging, get_logger
configure_logging(log_format=sys.argv[1], context={"node": "edge"})
get_logger("edge").info("began")
"""


def _ended(script: str, log_format: LogFormat = LogFormat.JSON) -> tuple[int, list[str]]:
    """Runs a script in a process that logs; returns its exit code and the lines of its standard error."""
    command = [sys.executable, "-c", _PREPARE + script, log_format]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr.splitlines()


def _records(lines: list[str]) -> list[tuple[str, str, str]]:
    found: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert {record["node"] for record in found} == {"edge"}
    assert all("time" in record for record in found)
    return [(record["level"], record["message"], record.get("line", "")) for record in found]


def test_the_line_of_tensorflow_lite_is_a_record() -> None:
    """It writes one for each interpreter, and no setting turns it off; a log collector could not parse it."""
    script = f"""
from ai_edge_litert.interpreter import Interpreter
Interpreter({str(_MODEL)!r}).allocate_tensors()
get_logger("edge").info("ended")
"""
    code, lines = _ended(script)
    records = _records(lines)
    assert code == 0
    assert ("info", "output of a library", "INFO: Created TensorFlow Lite XNNPACK delegate for CPU.") in records
    assert {("info", "began", ""), ("info", "ended", "")} <= set(records)


def test_the_last_words_of_a_crash_are_kept() -> None:
    """A library that aborts the process names the reason just before; no thread of that process could read it."""
    code, lines = _ended('os.write(2, b"F0000 check failed: bad_alloc\\n\\xff\\n" + b"no end of line"); os.abort()')
    assert code == -signal.SIGABRT
    assert _records(lines)[1:] == [
        ("warning", "output of a library", "F0000 check failed: bad_alloc"),
        ("warning", "output of a library", "\ufffd"),
        ("warning", "output of a library", "no end of line"),
    ]


def test_text_lines_are_left_as_they_are() -> None:
    """A person reads them, and needs no other process."""
    _, lines = _ended('os.write(2, b"INFO: Created\\n")', LogFormat.TEXT)
    assert [line.split("] ")[-1] for line in lines] == ["began node=edge", "INFO: Created"]
