"""A check with its finding and remedy, and the runner that makes groups of checks side by side within a deadline."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """The effect of a finding on a run."""

    OK = "ok"
    SKIPPED = "not checked"  # The check was not possible, or does not apply.
    WARNING = "warning"  # A run works, but worse than it could.
    ERROR = "error"  # A run cannot work.


OK, SKIPPED, WARNING, ERROR = Severity


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the table."""

    name: str
    severity: Severity
    finding: str  # For a fault, the cause.
    remedy: str = ""  # The command that repairs a fault.


Checks = Callable[[], Iterator[Check]]


def run_side_by_side(groups: Mapping[str, Checks], deadline_s: float) -> list[Check]:
    """Runs the checks of each group in a separate thread; returns the checks in the order of the groups.

    A group that has not ended by the deadline gets a check with that error; its thread keeps running.
    """
    found: dict[str, list[Check]] = {name: [] for name in groups}
    bugs: list[BaseException] = []

    def run(name: str) -> None:
        try:
            for check in groups[name]():
                found[name].append(check)
        except BaseException as error:  # noqa: BLE001 (raised again below)
            bugs.append(error)

    threads = {name: threading.Thread(target=run, args=(name,), name=f"doctor {name}", daemon=True) for name in groups}
    ends_s = time.monotonic() + deadline_s
    for thread in threads.values():
        thread.start()
    checks: list[Check] = []
    for name, thread in threads.items():
        thread.join(max(0.0, ends_s - time.monotonic()))
        checks += found[name]
        if thread.is_alive():
            where = f"after {checks[-1].name!r}" if found[name] else "at its first check"
            cause = f"it hangs {where}: no result in {deadline_s:g} s"
            checks.append(Check(name, ERROR, cause, "sudo dmesg | tail"))
    if bugs:
        raise bugs[0]
    return checks
