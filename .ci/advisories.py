#!/usr/bin/env python3
"""Ask which known vulnerabilities the libraries in the lock files have, by pip-audit.

Exit code 0: none, or none but those accepted. 1: some. 3: nobody could be asked, or not about all of them.

pip-audit passes over a library that a service does not know and ends with "No known vulnerabilities found". So a service
is asked first about a library with advisories that everybody knows, and one that does not name them is not believed.
"""

import datetime as dt
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
LOCKS = (
    "requirements.lock",
    "requirements-dev.lock",
    "edge/requirements.lock",
    "cloud/requirements.lock",
    "cloud/requirements-gpu.lock",
)
ACCEPTED = ROOT / ".ci" / "accepted-advisories.toml"
SERVICES = ("pypi", "osv", "esms")  # As pip-audit calls them; the first that knows anything is asked.
KNOWN = "urllib3==1.24.1"  # Advisories of 2019 and later stand against it.
FOUND, NOT_ASKED = 1, 3  # Exit codes.


@dataclass(frozen=True, slots=True)
class Finding:
    """An advisory against a locked library."""

    package: str
    version: str
    names: tuple[str, ...]  # Of the advisory: its own first, then those it has elsewhere.
    fixed_in: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Accepted:
    """An advisory that is let pass until a day, for a reason."""

    package: str
    advisory: str
    reason: str
    until: dt.date

    def covers(self, finding: Finding, today: dt.date) -> bool:
        """Whether it still lets this one pass."""
        return finding.package == self.package and self.advisory in finding.names and today < self.until


class Auditor:
    """pip-audit, as the program `tool`."""

    def __init__(self, tool: Path) -> None:
        self._tool = tool

    def ask(self, service: str, arguments: Iterable[str]) -> tuple[Mapping[str, Any], str]:
        """The answer ({} where there is none) and the last line that was said beside it."""
        command = [str(self._tool), "--vulnerability-service", service, "--format", "json", "--progress-spinner", "off"]
        done = subprocess.run(
            [*command, "--disable-pip", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
        said = done.stderr.strip().splitlines()
        try:
            return json.loads(done.stdout), said[-1] if said else ""
        except ValueError:
            return {}, said[-1] if said else f"no answer, exit code {done.returncode}"

    def fault(self, service: str) -> str:
        """Why the service is not to be believed; "" where it names what everybody knows."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "known.txt"
            file.write_text(f"{KNOWN}\n", encoding="utf-8")
            answer, said = self.ask(service, ["--no-deps", "--requirement", str(file)])
        if not answer:
            return f"not reached ({said.split(':')[0]})"
        return "" if findings(answer) else f"knows no advisory against {KNOWN}, and there are some"


def findings(answer: Mapping[str, Any]) -> list[Finding]:
    """What pip-audit found, in its order."""
    return [
        Finding(library["name"], library["version"], (found["id"], *found["aliases"]), tuple(found["fix_versions"]))
        for library in answer["dependencies"]
        for found in library.get("vulns", ())
    ]


def passed_over(answer: Mapping[str, Any]) -> list[str]:
    """The libraries that the service could not be asked about."""
    return [library["name"] for library in answer["dependencies"] if "skip_reason" in library]


def read_accepted(file: Path) -> list[Accepted]:
    """The advisories that are let pass.

    Raises:
        TypeError: an entry lacks one of its four keys, or has another.
        ValueError: it is no TOML.
    """
    return [Accepted(**entry) for entry in tomllib.loads(file.read_text(encoding="utf-8")).get("accepted", ())]


def table(found: Iterable[Finding], accepted: Iterable[Accepted], today: dt.date) -> Table:
    """One row an advisory."""
    shown = Table("package", "version", "advisory", "fixed in", "accepted")
    for finding in found:
        reasons = [f"until {entry.until}: {entry.reason}" for entry in accepted if entry.covers(finding, today)]
        fixed_in = ", ".join(finding.fixed_in) or "no release"
        shown.add_row(finding.package, finding.version, ", ".join(finding.names), fixed_in, "; ".join(reasons) or "no")
    return shown


def audit(auditor: Auditor, accepted: list[Accepted], today: dt.date, console: Console) -> int:
    """Ask, and show what was found; the exit code."""
    faults = {}
    for service in SERVICES:
        if not (fault := auditor.fault(service)):
            break
        faults[service] = fault
    else:
        reasons = "; ".join(f"{service}: {fault}" for service, fault in faults.items())
        console.print(f"No service could be asked about the locked libraries: {reasons}", soft_wrap=True)
        return NOT_ASKED
    answer, said = auditor.ask(
        service, [word for lock in LOCKS for word in ("--require-hashes", "--requirement", lock)]
    )
    if not answer:
        console.print(f"{service} knows advisories, but gave none for the lock files: {said}")
        return NOT_ASKED
    found, missing = findings(answer), passed_over(answer)
    console.print(f"{service} was asked about {len(answer['dependencies']) - len(missing)} libraries.")
    if found:
        console.print(table(found, accepted, today))
    for entry in accepted:
        if not any(entry.package == finding.package and entry.advisory in finding.names for finding in found):
            console.print(f"{entry.advisory} of {entry.package} no longer stands: take it out of {ACCEPTED.name}")
    if missing:
        console.print(f"{service} could not be asked about {', '.join(missing)}")
    if any(not any(entry.covers(finding, today) for entry in accepted) for finding in found):
        return FOUND
    return NOT_ASKED if missing else 0


if __name__ == "__main__":
    beside = Path(sys.executable).with_name("pip-audit")
    sys.exit(audit(Auditor(beside), read_accepted(ACCEPTED), dt.datetime.now(dt.UTC).date(), Console()))
