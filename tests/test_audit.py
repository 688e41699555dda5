"""`make audit`: the evaluation of pip-audit's reports, and the software bills of materials."""

import datetime as dt
import io
import json
import re
import stat
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.ci_script import CI, ci_script

TODAY = dt.date(2026, 11, 21)
KNOWN = {"name": "urllib3", "version": "1.24.1", "vulns": [{"id": "PYSEC-1", "aliases": [], "fix_versions": ["2"]}]}
CLEAN = {"name": "click", "version": "8.5.1", "vulns": []}
BAD = {"name": "numpy", "version": "2.4.6", "vulns": [{"id": "PYSEC-2", "aliases": ["CVE-2"], "fix_versions": []}]}
SKIPPED = {"name": "numpy", "skip_reason": "not found"}
# A fake pip-audit. Without a report for a service it fails, as if the service were unreachable.
PIP_AUDIT = """#!{python}
import sys
service = sys.argv[sys.argv.index("--vulnerability-service") + 1]
report = {reports}["known" if "--no-deps" in sys.argv else "locks"].get(service)
sys.exit(f"Traceback\\nConnectionError: no {{service}}") if report is None else print(report)
"""


advisories = ci_script("advisories")
sbom = ci_script("sbom")
Audit = Callable[..., tuple[int, str]]


@pytest.fixture
def audit(tmp_path: Path) -> Audit:
    """Runs the audit with a fake pip-audit and given reports by service; returns its exit code and its output."""

    def run(known: Mapping[str, Any], locks: Mapping[str, Any], accepted: Any = ()) -> tuple[int, str]:
        reports = {
            what: {service: json.dumps({"dependencies": libraries}) for service, libraries in by_service.items()}
            for what, by_service in {"known": known, "locks": locks}.items()
        }
        tool = tmp_path / "pip-audit"
        tool.write_text(PIP_AUDIT.format(python=sys.executable, reports=reports), encoding="utf-8")
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
        output = io.StringIO()
        code = advisories.audit(advisories.Auditor(tool), list(accepted), TODAY, Console(file=output, width=200))
        return code, output.getvalue()

    return run


def test_a_service_without_advisories_is_not_trusted(audit: Audit) -> None:
    """With a mirror that has no advisories, pip-audit reports "No known vulnerabilities found"."""
    code, output = audit({"pypi": [SKIPPED], "osv": [CLEAN]}, {"pypi": [CLEAN], "osv": [CLEAN]})
    assert code == 3
    assert output.count("\n") == 1
    assert "pypi: knows no advisory" in output
    assert "esms: not reached (ConnectionError)" in output


def test_the_first_working_service_is_used(audit: Audit) -> None:
    """A blocked service must not end the audit."""
    code, output = audit({"osv": [KNOWN]}, {"osv": [CLEAN]})
    assert (code, output) == (0, "osv was asked about 1 libraries.\n")


def test_a_vulnerability_fails_the_audit(audit: Audit) -> None:
    """The output names the library, its version and the advisory."""
    code, output = audit({"pypi": [KNOWN]}, {"pypi": [CLEAN, BAD]})
    assert code == 1
    assert re.search(r"numpy\W+2\.4\.6\W+PYSEC-2, CVE-2\W+no release\W+no\W", output)


def test_a_skipped_library_is_reported(audit: Audit) -> None:
    """The audit is then incomplete."""
    code, output = audit({"pypi": [KNOWN]}, {"pypi": [CLEAN, SKIPPED]})
    assert code == 3
    assert "could not be asked about numpy" in output


@pytest.mark.parametrize(("days", "code"), [(1, 0), (0, 1)])
def test_an_accepted_advisory_passes_until_it_expires(audit: Audit, days: int, code: int) -> None:
    """An exception without an end would be forgotten."""
    accepted = advisories.Accepted("numpy", "CVE-2", "never reached", TODAY + dt.timedelta(days))
    assert audit({"pypi": [KNOWN]}, {"pypi": [BAD]}, [accepted])[0] == code


def test_an_acceptance_covers_one_advisory_of_one_library(audit: Audit) -> None:
    """Other advisories still fail, and an unused acceptance is reported."""
    accepted = advisories.Accepted("numpy", "CVE-1", "never reached", TODAY + dt.timedelta(1))
    code, output = audit({"pypi": [KNOWN]}, {"pypi": [BAD]}, [accepted])
    assert code == 1
    assert "CVE-1 of numpy no longer stands" in output


def test_the_example_in_the_file_of_acceptances_is_valid(tmp_path: Path) -> None:
    """Users copy this example."""
    text = (CI / "accepted-advisories.toml").read_text(encoding="utf-8")
    example = tmp_path / "accepted.toml"
    example.write_text(text.split("One entry:")[1].replace("\n#", "\n"), encoding="utf-8")
    assert [entry.package for entry in advisories.read_accepted(example)] == ["numpy"]
    assert all(entry.reason for entry in advisories.read_accepted(CI / "accepted-advisories.toml"))


def test_every_lock_file_is_audited() -> None:
    """A lock file outside the list would ship unaudited libraries."""
    root = CI.parent
    present = {file.relative_to(root).as_posix() for file in [*root.glob("*.lock"), *root.glob("*/requirements*.lock")]}
    assert set(advisories.LOCKS) == present


@pytest.mark.parametrize("image", sbom.IMAGES, ids=lambda image: image.name)
def test_a_bill_of_materials_lists_each_library_once_with_hashes(image: Any) -> None:
    """A lock file may contain a library several times, for several Pythons."""
    blocks = sbom.requirements(image)
    names = [block.split("==")[0] for block in blocks]
    assert len(names) == len(set(names)) > 20
    assert all("--hash=sha256:" in block for block in blocks)
    assert {"click", "numpy", "paho-mqtt"} <= set(names)
    assert ("setuptools" in names) == (image.name != "skylane-edge"), "the vehicle image removes it"


def test_a_bill_of_materials_has_our_version_and_licence() -> None:
    """An advisory is matched to releases by the version."""
    about = tomllib.loads(sbom.project("skylane-edge"))["project"]
    assert (about["name"], about["license"]) == ("skylane-edge", "Apache-2.0")
    assert re.fullmatch(r"\d+\.\d+\.\d+", about["version"])


def test_bills_of_materials_are_for_the_python_of_the_images() -> None:
    """The libraries of a lock file depend on the Python version."""
    for node in ("edge", "cloud"):
        assert f"FROM python:{sbom.PLATFORM['python_version']}-" in (CI.parent / node / "Dockerfile").read_text("utf-8")
