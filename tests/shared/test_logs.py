"""Log lines go to standard error, carry their context, and cannot be forged by what they quote."""

import json
import subprocess
import sys

import pytest

from shared.log_lines import read_line
from shared.logs import LogFormat

_PROGRAM = """
import logging
from shared.logs import RateLimitedLogger, configure_logging, get_logger

configure_logging(log_format={log_format!r}, level={level!r}, context={{"node": "cloud", "worker": "worker-1"}})
log = get_logger("cloud")
log.debug("a detail")
log.info("model loaded", model="road-small", version="1")
log.warning("frame rejected", vehicle="car\\x1b[2J\\nforged", frame_id=7)
logging.getLogger("a.library").info("noise")
logging.getLogger("a.library").warning("trouble")
limited = RateLimitedLogger(log, period_s={period_s})
for frame_id in range(3):
    limited.warning("car-1", "rate limited", frame_id=frame_id)
try:
    raise ValueError("broken")
except ValueError:
    log.exception("engine failed")
"""


def lines(log_format: LogFormat, level: str = "info", period_s: float = 1000.0) -> list[str]:
    """What a program logs, in a process of its own: logging is configured once a process."""
    program = _PROGRAM.format(log_format=log_format.value, level=level, period_s=period_s)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_a_json_line_is_one_object_with_time_level_and_context() -> None:
    """Log collectors parse line by line and search by these names."""
    found = [json.loads(line) for line in lines(LogFormat.JSON)]
    assert [line["message"] for line in found] == [
        "model loaded",
        "frame rejected",
        "trouble",
        "rate limited",
        "engine failed",
    ]
    assert all({"time", "level", "node", "worker", "message"} <= line.keys() for line in found)
    assert found[0].items() >= {"level": "info", "model": "road-small", "version": "1", "worker": "worker-1"}.items()
    assert found[1]["frame_id"] == 7
    assert "ValueError: broken" in found[-1]["exception"]


def test_a_text_line_shows_no_control_characters() -> None:
    """A vehicle's name from the wire must neither clear the operator's screen nor look like a line of its own."""
    found = lines(LogFormat.TEXT)
    assert "\x1b" not in "".join(found)
    assert not any(line.startswith("forged") for line in found)
    assert "node=cloud worker=worker-1" in found[0]


@pytest.mark.parametrize(("level", "count"), [("debug", 6), ("warning", 4), ("error", 1)])
def test_lines_below_the_level_are_left_out(level: str, count: int) -> None:
    """Of libraries nothing below a warning is logged, whatever the level."""
    assert len(lines(LogFormat.JSON, level)) == count


def test_a_rate_limited_logger_reports_what_it_left_out() -> None:
    """A hostile client could otherwise fill the disk with its rejections."""
    found = [json.loads(line) for line in lines(LogFormat.JSON, period_s=0.0)]
    assert [line.get("suppressed") for line in found if line["message"] == "rate limited"] == [None, None, None]
    found = [json.loads(line) for line in lines(LogFormat.JSON)]
    assert [line["frame_id"] for line in found if line["message"] == "rate limited"] == [0]


def test_a_program_that_configures_nothing_shows_warnings_as_text() -> None:
    """Such as a benchmark that loses its broker: its user reads the line."""
    program = "from shared.logs import get_logger; log = get_logger('mqtt'); log.info('a'); log.warning('lost', s=1)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.rstrip().endswith("[warning  ] lost s=1")


def test_a_rate_limited_logger_bounds_what_many_keys_write() -> None:
    """Whoever may choose a vehicle's name could otherwise choose a new one for each line."""
    program = """
from shared.logs import RateLimitedLogger, configure_logging, get_logger

configure_logging()
limited = RateLimitedLogger(get_logger("cloud"), period_s=1000.0)
for number in range(2000):
    limited.warning(f"car-{number}", "rejected")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert len(done.stderr.splitlines()) == 50


def test_a_log_line_is_read_back_in_both_formats() -> None:
    """Programs that start a worker wait for its line, and must not take a vehicle's name for one."""
    for log_format in LogFormat:
        first, second, *_ = (read_line(line) for line in lines(log_format))
        assert first is not None
        assert second is not None
        assert (first.level, first.event, first.fields["worker"]) == ("info", "model loaded", "worker-1")
        assert (second.event, str(second.fields["frame_id"])) == ("frame rejected", "7")
    assert read_line("Traceback (most recent call last):") is None
    assert read_line('{"a": 1}') is None
    assert read_line("ready node=cloud worker=w") is None
