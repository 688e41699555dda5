"""Reads log lines back: programs that start a worker wait for its "ready", and report why it ended."""

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.logs import LEVELS

READY = "ready"  # Event of the line that a worker logs once it takes frames.

_FIELD = r"(\w+)=('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\s'\"]\S*|)"
_TEXT = re.compile(rf"(?P<time>\d{{4}}-\S+Z) \[(?P<level>\w+)\s*\] (?P<event>.*?)(?P<fields>(?: {_FIELD})*)")


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a node's log; the values of a text line's fields are strings."""

    level: str
    event: str
    fields: Mapping[str, Any]

    def is_ready_of(self, worker: str) -> bool:
        """Whether a worker reports by it that it takes frames."""
        return self.event == READY and self.fields.get("worker") == worker


def read_line(line: str) -> LogLine | None:
    """Reads a line of either format; None where it is not a log line, such as a part of a traceback."""
    if line.startswith("{"):
        try:
            fields = json.loads(line)
            level = str(fields.pop("level"))
            return LogLine(level, str(fields.pop("message")), fields) if level in LEVELS else None
        except (ValueError, KeyError, RecursionError):
            return None
    found = _TEXT.fullmatch(line.rstrip())
    if found is None or found["level"] not in LEVELS:
        return None
    values = {name: _value(text) for name, text in re.findall(_FIELD, found["fields"])}
    return LogLine(found["level"], found["event"].rstrip(), values)


def failure_reason(line: str) -> str | None:
    """Returns the reason in a line that reports an error or is no log line; None for any other."""
    entry = read_line(line)
    if entry is None:
        return line.removeprefix("skylane: ")
    return str(entry.fields.get("reason", entry.event)) if entry.level == "error" else None


def _value(text: str) -> str:
    return str(ast.literal_eval(text)) if text[:1] in ("'", '"') else text
