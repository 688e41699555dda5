"""Files whose paths come from outside: a FIFO would block its reader for ever."""

import errno
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.errors import SkylaneError
from shared.files import (
    check_file,
    check_writable,
    create_file,
    make_folder,
    new_file,
    open_file,
    open_own,
    read_file,
    resolved,
    write_file,
)

ROOT = Path(__file__).parents[2]


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


_OTHERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "FIFO": (os.mkfifo, "it is a FIFO: give a regular file"),
    "link-to-a-device": (lambda path: path.symlink_to("/dev/zero"), "it is a device: give a regular file"),
    "folder": (Path.mkdir, "it is a folder: give a regular file"),
    "circle": (lambda path: path.symlink_to(path.name), os.strerror(errno.ELOOP)),
    "dead-link": (lambda path: path.symlink_to("nothing"), os.strerror(errno.ENOENT)),
    "missing": (lambda _: None, os.strerror(errno.ENOENT)),
}


@pytest.mark.parametrize("kind", _OTHERS)
def test_what_is_no_regular_file_is_refused(kind: str, tmp_path: Path) -> None:
    """The error names the problem at once, and nothing waits for a writer or reads for ever."""
    make, problem = _OTHERS[kind]
    path = tmp_path / "given"
    make(path)
    for use in (check_file, open_file, read_file):
        with pytest.raises(OSError, match=re.escape(problem)) as raised:
            use(path)
        assert raised.value.filename in (path, str(path))


def test_a_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening one fails with a reason that helps nobody."""
    monkeypatch.chdir(tmp_path)  # The path of a socket is short.
    _socket(Path("given"))
    with pytest.raises(OSError, match="it is a socket: give a regular file"):
        open_file(Path("given"))


def test_a_file_and_a_link_to_it_are_read(tmp_path: Path) -> None:
    """Mounted secrets and shared data sets are links."""
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert read_file(tmp_path / "file") == read_file(tmp_path / "link") == b"content"


def test_links_in_a_circle_have_a_path(tmp_path: Path) -> None:
    """`Path.resolve` raises a RuntimeError for them."""
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "link").symlink_to(tmp_path)
    assert resolved(tmp_path / "circle").name == "circle"
    assert resolved(tmp_path / "link" / "x") == resolved(tmp_path) / "x"


def test_an_output_is_checked_before_the_work_and_keeps_its_content(tmp_path: Path) -> None:
    """A benchmark of ten minutes must not lose its result to a wrong path, nor an earlier result to a wrong flag."""
    check_writable(tmp_path / "new" / "result.json", "--json")
    earlier = tmp_path / "earlier.json"
    earlier.write_text("{}")
    check_writable(earlier, "--json")
    assert earlier.read_text() == "{}"
    with pytest.raises(SkylaneError, match=r"earlier\.json exists and is not a folder: choose another --json"):
        check_writable(earlier / "result.json", "--json")
    with pytest.raises(SkylaneError, match="it is a folder: give a regular file: choose another --out"):
        check_writable(tmp_path, "--out")
    with pytest.raises(SkylaneError, match="it is a device"):  # It would be replaced, for all programs.
        check_writable(Path("/dev/null"), "--out")


_VICTIMS: dict[str, Callable[[Path, Path], object]] = {
    "link": lambda path, victim: path.symlink_to(victim),
    "hard-link": lambda path, victim: path.hardlink_to(victim),
    "dead-link": lambda path, victim: path.symlink_to(victim.with_name("created")),
    "circle": lambda path, _: path.symlink_to(path.name),
    "FIFO": lambda path, _: os.mkfifo(path),
    "socket": lambda path, _: _socket(path),
}


def _check_report(run: Path) -> None:
    check_writable(run / "report.html", "--out")


def _write_report(run: Path) -> None:
    write_file(run / "report.html", "page")


def test_two_processes_may_write_one_file_and_it_stays_as_private_as_it_was(tmp_path: Path) -> None:
    """The last one to end wins, whole: neither writes into the other's draft."""
    path = tmp_path / "report.html"
    path.touch(mode=0o600)
    with new_file(path) as file:
        file.write(b"mine")
        write = (
            f"from pathlib import Path; from shared.files import write_file; write_file(Path({str(path)!r}), 'other')"
        )
        subprocess.run([sys.executable, "-c", write], check=True, cwd=ROOT)
        assert path.read_text() == "other"
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("mine", 0o600)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", _VICTIMS)
@pytest.mark.parametrize("name", ["report.html", "report.html.PID.new"])
def test_what_a_stranger_put_there_is_replaced_or_refused(
    kind: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive of a run can hold it; a file outside of the folder must neither change nor appear, and nothing waits."""
    monkeypatch.chdir(tmp_path)
    run, victim = Path("run"), Path("victim")
    run.mkdir()
    victim.write_text("precious")
    make = _VICTIMS[kind]
    make(run / name.replace("PID", str(os.getpid())), tmp_path / victim)
    for write in (_check_report, _write_report):
        if kind in ("FIFO", "socket") and name == "report.html":
            with pytest.raises((OSError, SkylaneError), match=f"it is a {kind}: give a regular file"):
                write(run)
        else:
            write(run)
            assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "victim"]
    if kind not in ("FIFO", "socket") or name != "report.html":
        assert (run / "report.html").read_text() == "page"
        assert [path.name for path in run.iterdir()] == ["report.html"]
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("kind", _VICTIMS)
def test_a_file_that_is_changed_in_place_has_one_name(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock, a log that is repaired or a download that goes on must not be another file; nor may it be a FIFO."""
    monkeypatch.chdir(tmp_path)
    victim = Path("victim")
    victim.write_text("precious")
    _VICTIMS[kind](Path("own"), tmp_path / victim)
    with pytest.raises(OSError, match="it is a link, has another name too, or is no regular file"):
        open_own(Path("own"))
    create_file(Path("own")).close()
    with open_own(Path("own")) as file:
        file.write(b"mine")
    assert victim.read_text() == "precious"
    assert {path.name for path in tmp_path.iterdir()} == {"own", "victim"}


def test_below_a_run_no_folder_is_a_link(tmp_path: Path) -> None:
    """The run itself may be a link of the user's; `masks` in it could lead to the masks of another run."""
    (tmp_path / "other").mkdir()
    (tmp_path / "real").mkdir()
    run = tmp_path / "run"
    run.symlink_to("real")
    (run / "masks").symlink_to(tmp_path / "other")
    for path in (run / "masks" / "0.png", run / "masks" / "camera" / "0.png"):
        with pytest.raises(OSError, match="run/masks is a link to another place: remove it"):
            write_file(path, b"", run)
    assert list((tmp_path / "other").iterdir()) == []
    write_file(run / "pictures" / "0.png", b"x", run)
    make_folder(run, run)
    assert (tmp_path / "real" / "pictures" / "0.png").read_bytes() == b"x"


def test_a_failed_or_forbidden_write_keeps_what_was_there(tmp_path: Path) -> None:
    """The browser would show half a page; a link such as /dev/stdout would be gone for all programs."""
    page = tmp_path / "page"
    page.write_text("old")
    with pytest.raises(TypeError), new_file(page) as file:
        file.writelines((b"half", None))  # type: ignore[arg-type]
    assert page.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["page"]
    with pytest.raises(OSError, match="it is a device: give a regular file"):
        write_file(Path("/dev/skylane-test"), b"")
    if os.geteuid():
        page.chmod(0o444)
        with pytest.raises(PermissionError):
            write_file(page, "new")
