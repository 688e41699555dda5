"""A check with its finding and remedy, and the runner that makes groups of checks side by side within a deadline."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from typing import Self

from shared.errors import SkylaneError

Checks = Callable[[], Iterator["Check"]]


class Severity(StrEnum):
    """What a finding means for a run, from harmless to fatal."""

    OK = "ok"
    SKIPPED = "not checked"
    WARNING = "warning"  # A run works, but worse than it could.
    ERROR = "error"  # A run cannot work.


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the table."""

    name: str
    severity: Severity
    finding: str
    remedy: str = ""  # The command that mends a warning or an error.

    @classmethod
    def ok(cls, name: str, finding: str) -> Self:
        """Returns a passed check."""
        return cls(name, Severity.OK, finding)

    @classmethod
    def skipped(cls, name: str, reason: str) -> Self:
        """Returns a check that could not be made, or does not apply."""
        return cls(name, Severity.SKIPPED, reason)

    @classmethod
    def warning(cls, name: str, cause: str, remedy: str) -> Self:
        """Returns a check with a fault that a run survives."""
        return cls(name, Severity.WARNING, cause, remedy)

    @classmethod
    def error(cls, name: str, cause: str, remedy: str) -> Self:
        """Returns a check with a fault that stops a run."""
        return cls(name, Severity.ERROR, cause, remedy)

    @classmethod
    def failed(cls, name: str, error: SkylaneError) -> Self:
        """Returns a failed check from an error message, whose part after the last colon is the remedy."""
        cause, _, remedy = str(error).rpartition(": ")
        return cls.error(name, cause or remedy, remedy if cause else "")

    def record(self) -> dict[str, str]:
        """Returns the check as an object of `--json`."""
        return asdict(self)


def run_side_by_side(groups: Mapping[str, Checks], deadline_s: float) -> list[Check]:
    """Makes the checks of every group in a thread of its own; returns them in the order of the groups.

    A group that has not ended by the deadline ends with a check that says so, and its thread is left behind.
    """
    found: dict[str, list[Check]] = {name: [] for name in groups}
    faults: list[BaseException] = []

    def run(name: str, checks: Checks) -> None:
        try:
            for check in checks():
                found[name].append(check)
        except BaseException as error:  # noqa: BLE001 (raised again below)
            faults.append(error)

    threads = {
        name: threading.Thread(target=partial(run, name, checks), name=f"doctor {name}", daemon=True)
        for name, checks in groups.items()
    }
    ends_s = time.monotonic() + deadline_s
    for thread in threads.values():
        thread.start()
    results = []
    for name, thread in threads.items():
        thread.join(max(0.0, ends_s - time.monotonic()))
        results += found[name]
        if thread.is_alive():
            last = f"the check after {found[name][-1].name!r}" if found[name] else "its first check"
            results.append(
                Check.error(name, f"{last} did not end within {deadline_s:g} s: something hangs", "skylane doctor")
            )
    if faults:
        raise faults[0]
    return results
