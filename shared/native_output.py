"""The standard error of native libraries as JSON log lines.

A process of its own reads it, so that the last words of a process that crashes become log lines, too. It is started by
`shared.logs.configure_logging` as a module.
"""

import json
import logging
import re
import sys

from shared.logs import LogFormat, configure_logging, get_logger

_MAX_LINE_BYTES = 65_536
_INFORMATION = re.compile(r"INFO\b|I\d{4} ").match  # Start of such lines of TensorFlow Lite and Abseil.


def main() -> None:
    """Logs each line of standard input until its end."""
    settings = json.loads(sys.argv[1])
    configure_logging(**settings, log_format=LogFormat.JSON, wraps_native=False)
    log = get_logger("native")
    while data := sys.stdin.buffer.readline(_MAX_LINE_BYTES):
        if line := data.decode(errors="replace").rstrip():
            log.log(logging.INFO if _INFORMATION(line) else logging.WARNING, "output of a library", line=line)


if __name__ == "__main__":
    main()
