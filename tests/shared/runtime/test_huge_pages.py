import os
import subprocess
import sys

import pytest

from shared.runtime.huge_pages import TUNABLE, VARIABLE, wanted

_MADVISE = "always [madvise] never\n"


def test_a_process_asks_for_huge_pages_once_and_keeps_its_other_tunables() -> None:
    """Else it would start anew for ever, or lose what its operator set."""
    first = wanted({"A": "1", VARIABLE: "glibc.malloc.arena_max=2"}, _MADVISE)
    assert first == {"A": "1", VARIABLE: f"glibc.malloc.arena_max=2:{TUNABLE}=1"}
    assert wanted(first, _MADVISE) is None
    assert wanted({}, _MADVISE) == {VARIABLE: f"{TUNABLE}=1"}


@pytest.mark.parametrize(
    ("environment", "setting"),
    [({VARIABLE: f"{TUNABLE}=0"}, _MADVISE), ({}, "[always] madvise never"), ({}, "always madvise [never]"), ({}, "")],
)
def test_nothing_changes_where_nothing_is_to_be_gained_or_it_was_forbidden(
    environment: dict[str, str], setting: str
) -> None:
    """An operator's word wins, and a kernel without huge pages is no reason for another start."""
    assert wanted(environment, setting) is None


def test_the_process_that_starts_anew_is_the_same_one_with_the_same_arguments() -> None:
    """Whoever supervises a worker knows it by its number and its pipes."""
    code = (
        "import os, sys; from pathlib import Path; from shared.runtime import huge_pages; "
        "huge_pages._setting = lambda: '[madvise]'; print(os.getpid(), flush=True); huge_pages.reexec_with_huge_pages(); "
        "print(os.environ['GLIBC_TUNABLES'], *sys.argv[1:], sys.stdin.read())"
    )
    environment = {key: value for key, value in os.environ.items() if key != VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", code, "one", "two words"],
        input="piped",
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    before, after, told = done.stdout.splitlines()
    assert before == after
    assert told == f"{TUNABLE}=1 one two words piped"
