import json
import subprocess
import sys
from functools import cache

import pytest

from shared.logs import LogFormat, read_line

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


@cache
def lines(log_format: LogFormat, level: str = "info", period_s: float = 1000.0) -> list[str]:
    """Returns the log lines of a program in a new process, as logging is configured once per process."""
    program = _PROGRAM.format(log_format=log_format.value, level=level, period_s=period_s)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_a_json_line_is_one_object_with_time_level_and_context() -> None:
    """Log collectors rely on these names."""
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


def test_a_text_line_has_no_control_characters() -> None:
    """A vehicle's name must neither control the terminal nor forge a line."""
    found = lines(LogFormat.TEXT)
    assert "\x1b" not in "".join(found)
    assert not any(line.startswith("forged") for line in found)
    assert "node=cloud worker=worker-1" in found[0]


@pytest.mark.parametrize(("level", "count"), [("debug", 6), ("warning", 4), ("error", 1)])
def test_lines_below_the_level_are_left_out(level: str, count: int) -> None:
    """Libraries log warnings and above at any level."""
    assert len(lines(LogFormat.JSON, level)) == count


def test_a_rate_limited_logger_omits_repeated_keys() -> None:
    """A hostile client must not fill the disk."""
    found = [json.loads(line) for line in lines(LogFormat.JSON, period_s=0.0)]
    assert [line.get("suppressed") for line in found if line["message"] == "rate limited"] == [None, None, None]
    found = [json.loads(line) for line in lines(LogFormat.JSON)]
    assert [line["frame_id"] for line in found if line["message"] == "rate limited"] == [0]


def test_warnings_are_shown_without_configuration() -> None:
    """A benchmark that does not configure logging still reports a lost broker."""
    program = "from shared.logs import get_logger; log = get_logger('mqtt'); log.info('a'); log.warning('lost', s=1)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.rstrip().endswith("[warning  ] lost s=1")


def test_a_rate_limited_logger_limits_the_lines_of_all_keys() -> None:
    """A hostile client may use a new vehicle name for each message."""
    program = """
from shared.logs import RateLimitedLogger, configure_logging, get_logger

configure_logging()
limited = RateLimitedLogger(get_logger("cloud"), period_s=1000.0)
for number in range(2000):
    limited.warning(f"car-{number}", "rejected")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert len(done.stderr.splitlines()) == 50


def test_log_lines_of_both_formats_can_be_parsed() -> None:
    """Programs that start a worker wait for its line."""
    for log_format in LogFormat:
        first, second, *_ = (read_line(line) for line in lines(log_format))
        assert first is not None
        assert second is not None
        assert (first.level, first.event, first.fields["worker"]) == ("info", "model loaded", "worker-1")
        assert (second.event, str(second.fields["frame_id"])) == ("frame rejected", "7")
    assert read_line("Traceback (most recent call last):") is None
    assert read_line('{"a": 1}') is None
    assert read_line("ready node=cloud worker=w") is None
