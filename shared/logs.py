"""Logging to standard error, as text for a terminal or as one JSON object per line for a log collector.

Every module logs through `get_logger`. A command calls `configure_logging` once; without it, Python's defaults apply
(warnings and errors on standard error).
"""

import ast
import json
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TextIO

import structlog
from structlog.stdlib import BoundLogger, ProcessorFormatter
from structlog.typing import EventDict, Processor

from shared import clock
from shared.quiet import is_quiet
from shared.sanitize import printable

DEFAULT_LEVEL = "info"
_QUIET_LEVEL = "warning"
_ROOT = "skylane"
LEVELS = ("debug", "info", "warning", "error", "critical")
_MAX_KEYS = 1024  # Keys that a rate-limited logger remembers; the oldest is dropped first.
_MAX_LINES = 50  # Lines per period of a rate-limited logger, over all keys.


_native_readers: list[subprocess.Popen[bytes]] = []  # They end after this process does.


class LogFormat(StrEnum):
    """Formats of log lines."""

    TEXT = "text"
    JSON = "json"


def get_logger(part: str, **context: Any) -> BoundLogger:
    """Returns the logger of a part of Skylane, such as "cloud" or "mqtt"; `context` is added to each of its lines."""
    logger: BoundLogger = structlog.stdlib.get_logger(f"{_ROOT}.{part}", **context)
    return logger


def configure_logging(
    *,
    level: str | None = None,
    log_format: str | None = None,
    context: Mapping[str, Any] | None = None,
    wraps_native: bool = True,
) -> None:
    """Sends log lines of the given level and above to standard error.

    Args:
        level: One of `LEVELS`; None: "info"; with `-q`, at least "warning". Libraries log at "warning" and above only.
        log_format: A value of `LogFormat`; None: text.
        context: Fields added to every line of this process, such as `{"node": "cloud", "worker": "worker-1"}`.
        wraps_native: Whether, with JSON, what native libraries write to standard error becomes log lines, too.
    """
    level = level or DEFAULT_LEVEL
    if is_quiet() and LEVELS.index(level) < LEVELS.index(_QUIET_LEVEL):
        level = _QUIET_LEVEL
    # In a test or a notebook, `sys.stderr` is not the standard error of the process, which is not ours then.
    if wraps_native and log_format == LogFormat.JSON and sys.stderr is sys.__stderr__:
        _wrap_native_output({"level": level, "context": dict(context or {})})
    handler = _StandardErrorHandler()
    handler.setFormatter(_formatter(log_format or LogFormat.TEXT, context or {}))
    logging.captureWarnings(capture=True)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(logging.WARNING, logging.getLevelNamesMapping()[level.upper()]))
    logging.getLogger(_ROOT).setLevel(level.upper())


def _wrap_native_output(settings: Mapping[str, Any]) -> None:
    """Gives native libraries a standard error of their own, whose lines `shared.native_output` logs.

    `sys.stderr` keeps the original one, so that this process's log lines do not depend on another process.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    command = [sys.executable, "-P", "-m", "shared.native_output", json.dumps(settings, default=str)]
    reader = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, start_new_session=True)
    assert reader.stdin is not None
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    os.dup2(reader.stdin.fileno(), 2)
    _native_readers.append(reader)


def _formatter(log_format: str, context: Mapping[str, Any]) -> logging.Formatter:
    fixed = dict(context)

    def add_context(_logger: Any, _method: str, event: EventDict) -> EventDict:
        return {**fixed, **event}

    shared_steps: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        add_context,
    ]
    last_steps: list[Processor] = [ProcessorFormatter.remove_processors_meta]
    if log_format == LogFormat.JSON:
        last_steps += [
            structlog.processors.format_exc_info,
            structlog.processors.EventRenamer("message"),
            structlog.processors.JSONRenderer(default=str),
        ]
    else:
        last_steps.append(_without_control_characters)
        last_steps.append(
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(),
                timestamp_key="time",
                pad_event_to=0,
                sort_keys=False,
                exception_formatter=structlog.dev.plain_traceback,
            )
        )
    return ProcessorFormatter(foreign_pre_chain=shared_steps, processors=[*shared_steps, *last_steps])


def _without_control_characters(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Replaces control characters, as values may come from messages and files and terminals interpret them."""
    return {key: printable(value) if isinstance(value, str) else value for key, value in event.items()}


class RateLimitedLogger:
    """Logs at most one line per key and period, and at most `_MAX_LINES` lines per period. Thread-safe.

    The field `suppressed` of the next line for a key is the number of lines omitted since its last one.
    """

    def __init__(self, logger: BoundLogger, period_s: float = 10.0) -> None:
        self._logger = logger
        self._period_ns = round(period_s * 1e9)
        self._lock = threading.Lock()
        self._logged: dict[Hashable, tuple[int, int]] = {}  # Time of the last line and lines suppressed since, by key.
        self._period_began_ns = 0
        self._lines = 0  # Written in the current period.
        self._overflow = 0  # Omitted because of `_MAX_LINES`.

    def info(self, key: Hashable, event: str, **fields: Any) -> None:
        """Logs at level "info", unless the key was logged within the period."""
        self._log(logging.INFO, key, event, fields)

    def warning(self, key: Hashable, event: str, **fields: Any) -> None:
        """Logs at level "warning", unless the key was logged within the period."""
        self._log(logging.WARNING, key, event, fields)

    def _log(self, level: int, key: Hashable, event: str, fields: dict[str, Any]) -> None:
        now_ns = clock.now_ns()
        with self._lock:
            last_ns, suppressed = self._logged.pop(key, (None, 0))
            if last_ns is not None and now_ns - last_ns < self._period_ns:
                self._logged[key] = (last_ns, suppressed + 1)
                return
            if now_ns - self._period_began_ns >= self._period_ns:
                self._period_began_ns, self._lines = now_ns, 0
                suppressed, self._overflow = suppressed + self._overflow, 0
            if self._lines >= _MAX_LINES:
                self._overflow += 1 + suppressed
                return
            self._lines += 1
            self._logged[key] = (now_ns, 0)
            if len(self._logged) > _MAX_KEYS:
                del self._logged[next(iter(self._logged))]
        if suppressed:
            fields["suppressed"] = suppressed
        self._logger.log(level, event, **fields)


class _StandardErrorHandler(logging.StreamHandler[TextIO]):
    """Writes to the current `sys.stderr`, which a progress bar replaces so that log lines do not break it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]  # StreamHandler has an attribute here.
        return sys.stderr


structlog.configure(
    processors=[
        structlog.stdlib.filter_by_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        ProcessorFormatter.wrap_for_formatter,
    ],
    logger_factory=structlog.stdlib.LoggerFactory(),
    wrapper_class=BoundLogger,
    cache_logger_on_first_use=True,
)
if logging.lastResort is not None:  # Programs that do not configure logging use it.
    logging.lastResort.setFormatter(_formatter(LogFormat.TEXT, {}))


READY = "ready"  # Event that a worker logs once it accepts frames.

_FIELD = r"(\w+)=('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\s'\"]\S*|)"
_TEXT = re.compile(rf"(?P<time>\d{{4}}-\S+Z) \[(?P<level>\w+)\s*\] (?P<event>.*?)(?P<fields>(?: {_FIELD})*)")


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a node's log; in the text format all field values are strings."""

    level: str
    event: str
    fields: Mapping[str, Any]

    def is_ready_of(self, worker: str) -> bool:
        """Returns whether the line reports that `worker` accepts frames."""
        return self.event == READY and self.fields.get("worker") == worker


def read_line(line: str) -> LogLine | None:
    """Parses a line of either format; returns None for other text, such as a part of a traceback."""
    if line.startswith("{"):
        try:
            fields = json.loads(line)
            level = str(fields.pop("level"))
            return LogLine(level, str(fields.pop("message")), fields) if level in LEVELS else None
        except (ValueError, KeyError, RecursionError):
            return None
    match = _TEXT.fullmatch(line.rstrip())
    if match is None or match["level"] not in LEVELS:
        return None
    values = {name: _value(text) for name, text in re.findall(_FIELD, match["fields"])}
    return LogLine(match["level"], match["event"].rstrip(), values)


def failure_reason(line: str) -> str | None:
    """Returns the reason for a failure from an error line or from other text; None for any other log line."""
    entry = read_line(line)
    if entry is None:
        return line.removeprefix("skylane: ")
    return str(entry.fields.get("reason", entry.event)) if entry.level == "error" else None


def _value(text: str) -> str:
    return str(ast.literal_eval(text)) if text[:1] in ("'", '"') else text
