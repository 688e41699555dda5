"""SECURITY.md names the tests that prove its claims."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_named_test_exists() -> None:
    """A claim whose test was renamed would no longer be checked."""
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(tests/[^`]*)`", text))
    assert len(named) > 10
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_every_test_of_this_folder_is_named() -> None:
    """Readers should find what is tested."""
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    paths = {
        f"tests/security/{path.name}" for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__)
    }
    assert {path for path in paths if path not in text} == set()
