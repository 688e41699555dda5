"""A server of this machine that answers requests for one file as good, bad and broken servers do."""

import hashlib
import http.server
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ops.broker.certificate_authority import CertificateAuthority

DATA = bytes(range(256)) * 4000
SHA256 = hashlib.sha256(DATA).hexdigest()
PAGES = {
    "": b"\n<!DOCTYPE html><html>Log in</html>",
    "mark": b"\xef\xbb\xbf<html>Log in</html>",
    "comment": b"\n" * 100 + b"<!-- cached --><HTML>Log in</HTML>",
    "head": b"<head></head>",
    "xml": b"<?xml version='1.0'?><Error/>",
}
ENCODINGS = {"packed": "gzip", "plain": "Identity"}
_THIRD = 3


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers by the path of the request; `asked` has the paths and the ranges."""

    def __init__(self, asked: list[tuple[str, str | None]], data: bytes, *arguments: Any) -> None:
        self.asked = asked
        self.data = data
        super().__init__(*arguments)

    def do_GET(self) -> None:
        """Answers one request."""
        given = self.headers.get("Range")
        self.asked.append((self.path, given))
        begin = int(given.removeprefix("bytes=").rstrip("-")) if given else 0
        first, _, rest = self.path[1:].partition("/")
        if first in ("loop", "hops", "leads"):
            self.redirect(
                {"loop": "/loop", "leads": rest}.get(first) or (f"/hops/{int(rest) - 1}" if rest > "0" else "/file")
            )
        elif first == "missing" or (first == "busy" and len(self.asked) < _THIRD):
            self.send_error(404 if first == "missing" else 503)
        elif first in ("page", "empty"):
            self.answer(PAGES.get(rest.partition("/")[0], PAGES[""]) if first == "page" else b"", 0)
        elif first == "shifted":  # The answer to a range is another range.
            self.answer(self.data[begin // 2 :], begin // 2)
        elif first == "cut-once":  # Without a length, so that only the content shows it.
            self.answer(self.data, 0, length=False, sent=1000 if len(self.asked) == 1 else None)
        elif first == "cut":  # Ends in the middle of the first answer.
            self.answer(self.data[begin:], begin, sent=None if begin else len(self.data) // 2)
        elif first == "cut-and-changed":
            self.answer(self.data[begin:][::-1] if begin else self.data, begin, sent=None if begin else 1000)
        elif first == "cut-without-ranges":
            self.answer(self.data, 0, sent=len(self.data) // 2 if len(self.asked) == 1 else None)
        else:
            status = int(rest.partition("/")[0]) if first == "status" else None
            self.answer(self.data, 0, length=first != "no-length", encoding=ENCODINGS.get(first, ""), status=status)

    def redirect(self, address: str) -> None:
        """Sends the client to another address."""
        self.send_response(302)
        self.send_header("Location", address)
        self.end_headers()

    def answer(
        self,
        data: bytes,
        begin: int,
        *,
        sent: int | None = None,
        length: bool = True,
        encoding: str = "",
        status: int | None = None,
    ) -> None:
        """Sends data from position `begin` of the file on; `sent` bytes of it if the connection is to break."""
        self.send_response(status or (206 if begin else 200))
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{begin + len(data) - 1}/{begin + len(data)}")
        if length:
            self.send_header("Content-Length", "9" * 5000 if self.path == "/huge" else str(len(data)))
        if encoding:
            self.send_header("Content-Encoding", encoding)
        self.end_headers()
        self.wfile.write(data[:sent])

    def log_message(self, *_: Any) -> None:
        """Keeps the test's output clean."""


@contextmanager
def serving(asked: list[tuple[str, str | None]], data: bytes = DATA) -> Iterator[str]:
    """Runs a server and yields its address; `asked` gets the path and the range of each request."""
    with _running(partial(Handler, asked, data)) as address:
        yield address


@contextmanager
def proxying(asked: list[tuple[str, str | None]], hosts: Sequence[str], folder: Path) -> Iterator[tuple[str, Path]]:
    """Runs a proxy that has the file at https://HOST itself; yields its address and the certificate of the authority.

    `asked` gets `CONNECT HOST:PORT` as well.
    """
    authority = CertificateAuthority(folder)
    file = authority.broker(hosts, 1).file
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, file.with_suffix(".key"))
    with _running(partial(_Proxy, context, asked, DATA)) as address:
        yield address, authority.certificate_file


class _Proxy(Handler):
    """Answers in a tunnel as a Handler does."""

    def __init__(self, context: ssl.SSLContext, *arguments: Any) -> None:
        self.context = context
        super().__init__(*arguments)

    def do_CONNECT(self) -> None:
        """Opens a tunnel, at the end of which is this server."""
        self.asked.append((f"CONNECT {self.path}", None))
        self.send_response(200)
        self.end_headers()
        with self.context.wrap_socket(self.connection, server_side=True) as tunnel:
            Handler(self.asked, self.data, tunnel, self.client_address, self.server)


@contextmanager
def _running(handler: Callable[..., Any]) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
