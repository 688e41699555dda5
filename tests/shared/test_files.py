"""Files whose paths come from outside: a FIFO would block its reader for ever."""

import errno
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.errors import SkylaneError
from shared.files import check_file, check_writable, open_file, read_file, resolved


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
