"""`make audit`: what it makes of pip-audit's answers, and what a bill of materials lists."""

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
# Says which service it is asked through in its last line, as a program that fails does.
PIP_AUDIT = """#!{python}
import sys
service = sys.argv[sys.argv.index("--vulnerability-service") + 1]
answer = {answers}["known" if "--no-deps" in sys.argv else "locks"].get(service)
sys.exit(f"Traceback\\nConnectionError: no {{service}}") if answer is None else print(answer)
"""


advisories = ci_script("advisories")
sbom = ci_script("sbom")
Audit = Callable[..., tuple[int, str]]


@pytest.fixture
def audit(tmp_path: Path) -> Audit:
    """Audits with a pip-audit that answers as told, by service: {} for none that answers. Its code and what it said."""

    def run(known: Mapping[str, Any], locks: Mapping[str, Any], accepted: Any = ()) -> tuple[int, str]:
        answers = {
            what: {service: json.dumps({"dependencies": libraries}) for service, libraries in by_service.items()}
            for what, by_service in {"known": known, "locks": locks}.items()
        }
        tool = tmp_path / "pip-audit"
        tool.write_text(PIP_AUDIT.format(python=sys.executable, answers=answers), encoding="utf-8")
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
        said = io.StringIO()
        code = advisories.audit(advisories.Auditor(tool), list(accepted), TODAY, Console(file=said, width=200))
        return code, said.getvalue()

    return run


def test_a_service_that_knows_nothing_is_not_taken_for_a_clean_bill(audit: Audit) -> None:
    """A mirror answers for no advisory at all, and pip-audit then ends with 0 and "No known vulnerabilities found"."""
    code, said = audit({"pypi": [SKIPPED], "osv": [CLEAN]}, {"pypi": [CLEAN], "osv": [CLEAN]})
    assert code == 3
    assert said.count("\n") == 1
    assert "pypi: knows no advisory" in said
    assert "esms: not reached (ConnectionError)" in said


def test_the_first_service_that_knows_is_asked(audit: Audit) -> None:
    """One that is blocked must not end the audit while another answers."""
    code, said = audit({"osv": [KNOWN]}, {"osv": [CLEAN]})
    assert (code, said) == (0, "osv was asked about 1 libraries.\n")


def test_a_finding_fails_and_is_shown(audit: Audit) -> None:
    """This is what the audit is for."""
    code, said = audit({"pypi": [KNOWN]}, {"pypi": [CLEAN, BAD]})
    assert code == 1
    assert re.search(r"numpy\W+2\.4\.6\W+PYSEC-2, CVE-2\W+no release\W+no\W", said)


def test_a_library_passed_over_is_named(audit: Audit) -> None:
    """Nothing found among half of them is half an answer."""
    code, said = audit({"pypi": [KNOWN]}, {"pypi": [CLEAN, SKIPPED]})
    assert code == 3
    assert "could not be asked about numpy" in said


@pytest.mark.parametrize(("days", "code"), [(1, 0), (0, 1)])
def test_an_accepted_advisory_passes_until_its_day(audit: Audit, days: int, code: int) -> None:
    """What is let pass for ever is forgotten."""
    accepted = advisories.Accepted("numpy", "CVE-2", "never reached", TODAY + dt.timedelta(days))
    assert audit({"pypi": [KNOWN]}, {"pypi": [BAD]}, [accepted])[0] == code


def test_an_acceptance_is_for_one_advisory_of_one_library(audit: Audit) -> None:
    """Otherwise the next one against it would pass too; and one without use is said to be."""
    accepted = advisories.Accepted("numpy", "CVE-1", "never reached", TODAY + dt.timedelta(1))
    code, said = audit({"pypi": [KNOWN]}, {"pypi": [BAD]}, [accepted])
    assert code == 1
    assert "CVE-1 of numpy no longer stands" in said


def test_the_example_of_an_acceptance_can_be_read(tmp_path: Path) -> None:
    """It is copied when it is needed, in a hurry; and what stands in the file has not run out."""
    text = (CI / "accepted-advisories.toml").read_text(encoding="utf-8")
    example = tmp_path / "accepted.toml"
    example.write_text(text.split("One entry:")[1].replace("\n#", "\n"), encoding="utf-8")
    assert [entry.package for entry in advisories.read_accepted(example)] == ["numpy"]
    assert all(entry.reason for entry in advisories.read_accepted(CI / "accepted-advisories.toml"))


def test_all_locks_are_asked_about_and_there() -> None:
    """A lock that is not asked about ships whatever stands against it."""
    root = CI.parent
    there = {file.relative_to(root).as_posix() for file in [*root.glob("*.lock"), *root.glob("*/requirements*.lock")]}
    assert set(advisories.LOCKS) == there


@pytest.mark.parametrize("image", sbom.IMAGES, ids=lambda image: image.name)
def test_a_bill_lists_each_library_once_with_its_hashes(image: Any) -> None:
    """A lock holds a library several times, for several Pythons; an image holds it once."""
    held = sbom.requirements(image)
    names = [block.split("==")[0] for block in held]
    assert len(names) == len(set(names)) > 20
    assert all("--hash=sha256:" in block for block in held)
    assert {"click", "numpy", "paho-mqtt"} <= set(names)
    assert ("setuptools" in names) == (image.name != "skylane-edge"), "the vehicle's image takes it out again"


def test_a_bill_is_of_our_version_under_our_licence() -> None:
    """Whoever gets an advisory looks up which release has the library."""
    about = tomllib.loads(sbom.project("skylane-edge"))["project"]
    assert (about["name"], about["license"]) == ("skylane-edge", "Apache-2.0")
    assert re.fullmatch(r"\d+\.\d+\.\d+", about["version"])


def test_bills_are_for_the_python_of_the_images() -> None:
    """The lock's libraries depend on it."""
    for room in ("edge", "cloud"):
        assert f"FROM python:{sbom.PLATFORM['python_version']}-" in (CI.parent / room / "Dockerfile").read_text("utf-8")
