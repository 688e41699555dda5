"""What the commands print on terminals, serial consoles and logs of cron whose encoding lacks characters."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from skylane import cli

ROOT = Path(__file__).parents[2]
SMALL = ("--frames", 1, "--width", 48, "--height", 32)
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def run(*arguments: object, **environment: str) -> tuple[int, bytes, bytes]:
    """Runs `skylane`; returns its exit code and what it printed on standard output and standard error."""
    variables = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-P", "-m", "skylane", *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, check=False, env={**variables, **environment})
    return ended.returncode, ended.stdout, ended.stderr


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short drive whose name is not ASCII."""
    path = tmp_path_factory.mktemp("drives") / "Straße"
    code, shown, problem = run("bag", "make", path, *SMALL, PYTHONIOENCODING="ascii")
    assert (code, problem) == (0, b"")
    assert b"Stra?e" in shown  # Printed by click.
    return path


@pytest.mark.parametrize(
    ("encoding", "resolution"),
    [("ascii", b"48?32"), ("latin-1", b"48\xd732"), ("cp437", b"48?32"), ("utf-8", b"48\xc3\x9732")],
)
def test_characters_that_an_encoding_lacks_are_replaced(drive: Path, encoding: str, resolution: bytes) -> None:
    """The exit code stays that of the work: a script would take a finished run for a failed one."""
    code, shown, problem = run("bag", "info", drive, PYTHONIOENCODING=encoding)
    assert (code, problem) == (0, b"")
    assert resolution in shown  # Printed by Rich.


def test_the_locale_c_can_name_every_file(tmp_path: Path) -> None:
    """Its file names are bytes, also on standard error, and so is a name that is not UTF-8 in any locale."""
    for name, environment in ((b"Stra\xc3\x9fe", C_LOCALE), (b"Stra\xdfe", {"LC_ALL": "C.UTF-8"})):
        drive = tmp_path / os.fsdecode(name)
        assert run("bag", "info", drive, **environment)[2].startswith(b"skylane: ")
        code, _, problem = run("bag", "make", drive, *SMALL, **environment)
        assert (code, problem) == (0, b"")
        assert os.fsencode(drive) in [os.fsencode(path) for path in tmp_path.iterdir()]


def test_a_path_that_the_system_s_encoding_lacks_is_an_error_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder named in a configuration file, in the locale C."""
    monkeypatch.setattr(cli.skylane, "main", lambda **_: "Straße".encode("ascii"))
    with pytest.raises(SystemExit, match="1"):
        cli.main([])
    assert capsys.readouterr().err == (
        "skylane: this system's encoding, ascii, lacks a character of 'Straße': set LC_ALL=C.UTF-8\n"
    )
