"""Downloads from a real server of this machine, which answers as good, bad and broken servers do."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from shared.network.download import MAX_REDIRECTS, DownloadError, RemoteFile
from tests.support.file_server import DATA, PAGES, SHA256, proxying, serving

LIMIT = 10 << 20


@pytest.fixture
def asked() -> list[tuple[str, str | None]]:
    """What the server was asked."""
    return []


@pytest.fixture
def server(asked: list[tuple[str, str | None]]) -> Iterator[str]:
    """The address of a server."""
    with serving(asked) as address:
        yield address


@pytest.mark.parametrize(
    "path",
    ["file", "cut", "cut-without-ranges", "no-length", "busy", "hops/4", "plain", "ü/€?q=ü", "leads//ü/x"],
    ids=lambda each: each,
)
def test_the_file_arrives_whole(server: str, tmp_path: Path, path: str) -> None:
    """Also over broken connections, busy servers and redirects, and nothing else is left in its folder."""
    target = tmp_path / "new" / "file.onnx"
    steps: list[int] = []
    found = RemoteFile(f"{server}/{path}", LIMIT, len(DATA), SHA256).fetch(target, lambda done, _: steps.append(done))
    assert found == SHA256
    assert target.read_bytes() == DATA
    assert steps[-1] == len(DATA)
    assert [each.name for each in target.parent.iterdir()] == ["file.onnx"]


def test_what_has_arrived_is_not_asked_for_again(
    server: str, asked: list[tuple[str, str | None]], tmp_path: Path
) -> None:
    """The second request is for the rest."""
    RemoteFile(f"{server}/cut", LIMIT, None, SHA256).fetch(tmp_path / "file")
    assert asked == [("/cut", None), ("/cut", f"bytes={len(DATA) // 2}-")]


def test_a_later_call_goes_on_where_an_earlier_one_ended(
    server: str, asked: list[tuple[str, str | None]], tmp_path: Path
) -> None:
    """The hash of the whole file decides."""
    target = tmp_path / "file"
    (tmp_path / f".file.{SHA256[:12]}.part").write_bytes(DATA[:5000])
    RemoteFile(f"{server}/cut", LIMIT, None, SHA256).fetch(target)
    assert asked == [("/cut", "bytes=5000-")]
    assert target.read_bytes() == DATA


@pytest.mark.parametrize("size", [5000, len(DATA)])
@pytest.mark.parametrize("path", ["cut", "file", "shifted"])
def test_a_wrong_part_of_an_earlier_call_is_given_up(server: str, tmp_path: Path, size: int, path: str) -> None:
    """The server that is right now is not blamed for the bytes of another one."""
    target = tmp_path / "file"
    (tmp_path / f".file.{SHA256[:12]}.part").write_bytes(b"x" * size)
    assert RemoteFile(f"{server}/{path}", LIMIT, len(DATA), SHA256).fetch(target) == SHA256
    assert target.read_bytes() == DATA


def test_a_file_of_unknown_hash_is_never_put_together(
    server: str, asked: list[tuple[str, str | None]], tmp_path: Path
) -> None:
    """Its parts could be of different files."""
    assert RemoteFile(f"{server}/cut-without-ranges", LIMIT).fetch(tmp_path / "file") == SHA256
    assert [given for _, given in asked] == [None, None]


@pytest.mark.parametrize(
    ("path", "limits", "reason"),
    [
        ("cut-and-changed", (LIMIT, len(DATA), SHA256), "it has SHA-256"),
        ("file", (LIMIT, len(DATA), "0" * 64), f"it has SHA-256 {SHA256}, not 000"),
        ("file", (LIMIT, len(DATA) + 1, SHA256), f"it has {len(DATA)} bytes, not {len(DATA) + 1}"),
        ("no-length", (LIMIT, 1000, SHA256), "more than"),
        ("no-length", (1000, None, None), "more than 0.001 MB: allow more with --max-mb"),
        ("file", (1000, None, None), "more than 0.001 MB"),
        *((f"page/{name}", (LIMIT, None, None), "it is an HTML or XML page") for name in PAGES),
        ("packed", (LIMIT, None, None), "it is sent as gzip"),
        ("status/206", (LIMIT, None, None), "the server answers 206, and not with the whole file"),
        ("status/206", (LIMIT, None, SHA256), "the server answers 206"),
        ("status/204", (LIMIT, None, None), "the server answers 204"),
        ("status/203", (LIMIT, None, None), "the server answers 203"),
        ("empty", (LIMIT, None, None), "it is empty"),
        ("huge", (LIMIT, None, None), "it has more than 10.4858 MB"),
        ("leads/http://[::1", (LIMIT, None, None), "malformed .Invalid IPv6 URL"),
        (
            "leads/http://a..b/file",
            (LIMIT, None, None),
            "/leads/http://a..b/file leads to .* 'http://a..b/file' is not",
        ),
        ("leads/https://a..b/file", (LIMIT, None, None), "'https://a..b/file' is not an address"),
        ("leads/https://10.0.0.1/file", (LIMIT, None, None), "10.0.0.1 is the private address"),
        ("missing", (LIMIT, None, SHA256), "the server answers 404 Not Found"),
        ("loop", (LIMIT, None, None), "infinite loop"),
        (f"hops/{MAX_REDIRECTS + 1}", (LIMIT, None, None), "infinite loop"),
        ("leads/http://example.com/file", (LIMIT, None, None), "http is for this machine only"),
        ("leads/file:///etc/passwd", (LIMIT, None, None), "is not allowed"),
        ("leads/http://localhost:1/file", (LIMIT, None, None), "refused|private address"),
    ],
    ids=lambda each: str(each)[:30],
)
def test_another_file_is_refused_and_nothing_is_left(
    server: str, tmp_path: Path, path: str, limits: tuple[int, int | None, str | None], reason: str
) -> None:
    """The message names the address and the reason."""
    target = tmp_path / "new" / "file"
    with pytest.raises(DownloadError, match=reason):
        RemoteFile(f"{server}/{path}", *limits).fetch(target)
    assert not target.parent.exists()


def test_an_answer_cannot_lead_to_another_service_of_this_machine(server: str, tmp_path: Path) -> None:
    """The user typed 127.0.0.1, and not the name that the answer gives."""
    with serving([]) as other:
        remote = RemoteFile(f"{server}/leads/{other.replace('127.0.0.1', 'localhost')}/file", LIMIT)
        with pytest.raises(DownloadError, match="localhost is the private address"):
            remote.fetch(tmp_path / "file")


def test_an_answer_leads_through_a_proxy(
    server: str, asked: list[tuple[str, str | None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy itself has a private address, as most have; the other host must not."""
    for name in ("no_proxy", "NO_PROXY", "http_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with proxying(asked, ["example.com", "10.0.0.1"], tmp_path / "authority") as (proxy, authority):
        monkeypatch.setenv("https_proxy", proxy)
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
        for number, address in enumerate(("https://example.com", f"{server}/leads/https://example.com")):
            assert RemoteFile(f"{address}/file", LIMIT).fetch(tmp_path / f"{number}") == SHA256
        for private in ("https://10.0.0.1/file", "https://[::ffff:10.0.0.1]/file"):
            with pytest.raises(DownloadError, match="is the private address"):
                RemoteFile(f"{server}/leads/{private}", LIMIT).fetch(tmp_path / "file")
        RemoteFile("https://10.0.0.1/file", LIMIT).fetch(tmp_path / "typed")
    assert {path for path, _ in asked if "CONNECT" in path} == {"CONNECT example.com:443", "CONNECT 10.0.0.1:443"}


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://example.com/a.onnx", "http is for this machine only"),
        ("ftp://example.com/a.onnx", "is not an address"),
        ("file:///etc/passwd", "is not an address"),
        ("https://", "is not an address"),
        ("https://host:99999/a", "is not an address"),
        ("https://a..b/x.onnx", "is not an address"),
        ("https://" + "a" * 64 + ".org/x.onnx", "is not an address"),
        ("https://[::1/x.onnx", "is not an address"),
        ("https://a\x1b[31m/b", "is not an address"),
        ("https://user:secret@host/a", "has a user name before it"),
        ("example.com/a", "is not an address"),
    ],
)
def test_other_addresses_are_refused(url: str, reason: str) -> None:
    """Before anything is asked, and without printing a password."""
    with pytest.raises(DownloadError, match=reason) as caught:
        RemoteFile(url, LIMIT)
    assert "secret" not in str(caught.value)
    assert str(caught.value).isprintable()


def test_two_downloads_of_one_file_do_not_mix(server: str, tmp_path: Path) -> None:
    """The second one is refused."""
    inner: list[str] = []

    def again(_done: int, _total: int | None) -> None:
        with pytest.raises(DownloadError, match="by another process"):
            RemoteFile(f"{server}/file", LIMIT, None, SHA256).fetch(tmp_path / "file")
        inner.append("refused")

    RemoteFile(f"{server}/file", LIMIT, None, SHA256).fetch(tmp_path / "file", again)
    assert inner


def test_a_refused_download_leaves_the_other_one_alone(server: str, tmp_path: Path) -> None:
    """Without a hash, too: only the process that has the lock removes the part."""

    def again(_done: int, _total: int | None) -> None:
        with pytest.raises(DownloadError, match="by another process"):
            RemoteFile(f"{server}/file", LIMIT).fetch(tmp_path / "file")

    RemoteFile(f"{server}/file", LIMIT).fetch(tmp_path / "file", again)
    assert (tmp_path / "file").read_bytes() == DATA


def test_without_a_server_one_sentence_says_so(tmp_path: Path) -> None:
    """Nothing is left behind."""
    with pytest.raises(DownloadError, match=r"cannot download http://127\.0\.0\.1:1/file: Connection refused"):
        RemoteFile("http://127.0.0.1:1/file", LIMIT).fetch(tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


_OK = b"HTTP/1.1 200 OK\r\n"
_CHUNKED = _OK + b"Transfer-Encoding: chunked\r\n\r\n"
_ENDLESS = {
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
    "trailers": (_CHUNKED + b"4\r\nTFL3\r\n0\r\n", b"X-A: b\r\n" * 1000),
    "extensions of chunks": (_CHUNKED, b"1;" + b"x" * 4000 + b"\r\nx\r\n"),
}


@contextmanager
def _sending(head: bytes, piece: bytes, pause_s: float = 0.0) -> Iterator[str]:
    """Serves an answer that never ends."""

    def answer() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                connection.recv(1 << 16)
                connection.sendall(head)
                while not ended.wait(pause_s):
                    connection.sendall(piece)

    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/m.tflite"
        finally:
            ended.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("name", _ENDLESS)
def test_an_answer_that_brings_no_file_ends(name: str, tmp_path: Path) -> None:
    """Each wait for bytes is short, and the whole would take for ever."""
    with (
        _sending(*_ENDLESS[name]) as url,
        pytest.raises(DownloadError, match=r"the server sent [0-9]+ bytes, of which .* of the file: try again"),
    ):
        RemoteFile(url, LIMIT).fetch(tmp_path / "m.tflite")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("head", [_OK + b"Content-Length: 200004\r\n\r\n" + b"x" * 600, _OK + b"X: ", b""])
def test_a_download_that_is_too_slow_ends_with_its_rate(head: bytes, tmp_path: Path) -> None:
    """A byte a second, in the file or in a header, would take days."""
    with (
        _sending(head, b"x", 0.01) as url,
        pytest.raises(DownloadError, match=r"[0-9]+ bytes of it a second came, fewer than 4096: try again"),
    ):
        RemoteFile(url, LIMIT, rate_over_s=0.2, timeout_s=2.0).fetch(tmp_path / "m.tflite")


def test_a_download_has_a_total_time_and_goes_on_from_there(server: str, tmp_path: Path) -> None:
    """With a known hash, the part stays for the next call."""
    target = tmp_path / "m.tflite"
    with (
        _sending(_OK + b"\r\n", DATA[:1000], 0.01) as url,
        pytest.raises(
            DownloadError, match=r"longer than 0\.3 s; [0-9]+ bytes are there: try again, which goes on from there"
        ),
    ):
        RemoteFile(url, LIMIT, None, SHA256, longest_s=0.3).fetch(target)
    assert RemoteFile(f"{server}/file", LIMIT, None, SHA256).fetch(target) == SHA256
