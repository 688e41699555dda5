"""The documentation compared with the code: generated pages, environment variables, and the version."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]


def test_the_generated_pages_are_up_to_date(tmp_path: Path) -> None:
    """The pages of the command line and of the configuration keys must show what the code accepts."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, ROOT / "docs" / "generate_reference.py", tmp_path], check=True, env=environment)
    for page in tmp_path.iterdir():
        current = (ROOT / "docs" / "reference" / page.name).read_text(encoding="utf-8")
        assert current == page.read_text(encoding="utf-8"), f"{page.name} is out of date: run `make docs-reference`"


def test_every_environment_variable_is_documented() -> None:
    """Users cannot find a variable that the page does not name."""
    page = (ROOT / "docs" / "reference" / "environment.md").read_text(encoding="utf-8")
    found = subprocess.run(
        ["git", "grep", "-hoE", r"\bSKYLANE_[A-Z_]*[A-Z]\b", "--", "*.py", "docker-compose.yml", ":!bench", ":!docs"],
        capture_output=True, text=True, check=True, cwd=ROOT,
    ).stdout.split()  # fmt: skip
    assert found
    assert {name for name in found if not re.search(rf"`{name}`", page)} == set()


def test_the_citation_names_this_version() -> None:
    """A paper that cites Skylane must name the version that it used."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    setup = (ROOT / "setup.cfg").read_text(encoding="utf-8")
    assert f"version = {citation['version']}\n" in setup


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_first_pages_stay_short(page: str) -> None:
    """New users do not read a page that is longer than three screens."""
    assert len((ROOT / page).read_text(encoding="utf-8").splitlines()) <= 150
