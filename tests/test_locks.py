"""One resolution: what the tests ran with is what the images hold."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTED = "requirements.lock"
SHIPPED = ("edge/requirements.lock", "cloud/requirements.lock", "cloud/requirements-gpu.lock")


def pinned(lock: str) -> dict[str, set[str]]:
    """The versions of each package; several where they depend on the Python."""
    found: dict[str, set[str]] = {}
    for name, version in re.findall(
        r"^([a-z0-9._-]+)==([^ ;]+)", (ROOT / lock).read_text(encoding="utf-8"), re.MULTILINE
    ):
        found.setdefault(name, set()).add(version)
    return found


@pytest.mark.parametrize("lock", SHIPPED)
def test_an_image_holds_the_versions_that_were_tested(lock: str) -> None:
    """`make lock` constrains the one by the other; a lock made by hand would not."""
    tested, shipped = pinned(TESTED), pinned(lock)
    shared = tested.keys() & shipped.keys()
    assert len(shared) > 20
    others = {name: (versions, tested[name]) for name in shared if not (versions := shipped[name]) <= tested[name]}
    assert not others
