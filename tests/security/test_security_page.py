import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_what_is_said_to_hold_is_held_by_tests_that_are_there() -> None:
    """A promise of security that names a test which was renamed is a promise that nobody checks."""
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(tests/[^`]*)`", text))
    assert len(named) > 10
    assert [place for place in sorted(named) if not (ROOT / place).exists()] == []


def test_every_test_of_a_locked_door_is_named() -> None:
    """What holds, a reader should find."""
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    doors = {f"tests/doors/{path.name}" for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__)}
    assert {place for place in doors if place not in text} == set()
