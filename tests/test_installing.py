"""What `make demo` and `make dev` print while pip installs their libraries."""

import os
import re
import subprocess
from pathlib import Path

CI = Path(__file__).parents[1] / ".ci"
_OUTPUT = """\
Ignoring colorama: markers 'sys_platform == "win32"' don't match your environment
Collecting absl-py==2.5.1 (from -r requirements.lock (line 1))
  Downloading absl_py-2.5.1-py3-none-any.whl.metadata (4.5 kB)
  Downloading absl_py-2.5.1-py3-none-any.whl (137 kB)
     ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 137.7/137.7 kB 12.6 MB/s eta 0:00:00
Collecting tensorflow==2.21.0 (from -r requirements.lock (line 3))
  Using cached tensorflow-2.21.0-cp311-cp311-manylinux.whl (620.4 MB)
Processing /wheels/lz4-4.4.5-cp311-cp311-manylinux2014_x86_64.whl (from -r requirements.lock (line 5))
Installing collected packages: tensorflow, lz4, absl-py
Successfully installed absl-py-2.5.1 lz4-4.4.5 tensorflow-2.21.0
"""


def test_each_library_has_a_line_while_pip_works(tmp_path: Path) -> None:
    """Three gigabytes take minutes, on a terminal and in the log of a CI."""
    lock = tmp_path / "requirements.lock"
    pins = ("absl-py==2.5.1", 'colorama==0.4.6 ; sys_platform == "win32"', "tensorflow==2.21.0", "lz4==4.4.5")
    lock.write_text("# by make lock\n" + "".join(f"{pin} \\\n    --hash=sha256:00==\n" for pin in pins))
    shown = subprocess.run(
        [CI / "pip-progress", lock], input=_OUTPUT, capture_output=True, text=True, check=True
    ).stdout
    assert shown.splitlines() == [
        "  1 of 3: absl_py, 137 kB",
        "  2 of 3: tensorflow, 620.4 MB",
        "  3 of 3: lz4",
        "  installing them, which takes a minute or two",
    ]


def test_a_silent_installation_shows_what_is_on_the_disk(tmp_path: Path) -> None:
    """A large download, or the unpacking of TensorFlow, prints nothing for minutes."""
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "library").write_bytes(bytes(5_000_000))
    lock = tmp_path / "requirements.lock"
    lock.write_text("tensorflow==2.21.0\n")
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command: list[str | Path] = [CI / "pip-progress", lock, "0.1"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
    ) as shown:
        assert shown.stdin is not None
        assert shown.stdout is not None
        assert re.fullmatch(r"    \d+ s, [45] MB so far\n", shown.stdout.readline())
        shown.stdin.close()


def test_an_error_of_pip_ends_the_installation() -> None:
    """The exit code of a pipe is that of its last command without this option."""
    for name in ("make-venv", "install-dev"):
        assert "set -euo pipefail" in (CI / name).read_text(encoding="utf-8")
