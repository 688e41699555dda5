import os
import subprocess
import sys
from pathlib import Path

import pytest

from shared.runtime.memory import TUNABLE, VARIABLE, new_environment

_MADVISE = "always [madvise] never\n"


def test_the_tunable_is_added_once_and_others_are_kept() -> None:
    """Otherwise the process would restart forever, or lose settings of its operator."""
    first = new_environment({"A": "1", VARIABLE: "glibc.malloc.arena_max=2"}, _MADVISE)
    assert first == {"A": "1", VARIABLE: f"glibc.malloc.arena_max=2:{TUNABLE}=1"}
    assert new_environment(first, _MADVISE) is None
    assert new_environment({}, _MADVISE) == {VARIABLE: f"{TUNABLE}=1"}


@pytest.mark.parametrize(
    ("environment", "kernel_mode"),
    [({VARIABLE: f"{TUNABLE}=0"}, _MADVISE), ({}, "[always] madvise never"), ({}, "always madvise [never]"), ({}, "")],
)
def test_the_environment_is_kept_if_huge_pages_are_disabled_or_automatic(
    environment: dict[str, str], kernel_mode: str
) -> None:
    """The operator or the kernel has decided already, so a restart has no effect."""
    assert new_environment(environment, kernel_mode) is None


def test_the_process_keeps_its_id_arguments_and_pipes(tmp_path: Path) -> None:
    """A supervisor identifies a worker by its process id and its pipes."""
    setting = tmp_path / "enabled"
    setting.write_text(_MADVISE)
    code = (
        "import os, sys; from pathlib import Path; from shared.runtime.memory import reexec_with_huge_pages; "
        f"print(os.getpid(), flush=True); reexec_with_huge_pages(Path({str(setting)!r})); "
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
    before, after, state = done.stdout.splitlines()
    assert before == after
    assert state == f"{TUNABLE}=1 one two words piped"
