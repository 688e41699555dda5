"""Downloads one file: over https, bounded, resumed after an interruption, checked by its hash, and never half-written."""

import fcntl
import hashlib
import http.client
import io
import os
import re
import ssl
import string
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, urlsplit

from shared.errors import SkylaneError, reason_of, unwritable_message
from shared.files import open_own
from shared.sanitize import printable

MAX_REDIRECTS = 5

_HEAD_BYTES = 512  # Enough to recognise a page.
_OTHER_BYTES = 1 << 20  # Interim answers, headers and trailers; the rest of what is no part of the file grows with it.
_LEAST_BYTES_PER_S = 1 << 12
_ATTEMPTS = 4
_BLOCK_BYTES = 1 << 18
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
# The begin of HTML and XML, after a byte order mark.
_MARKUP = re.compile(rb"(\xef\xbb\xbf)?\s*<[!?a-z]", re.IGNORECASE)

OnProgress = Callable[[int, int | None], None]


class DownloadError(SkylaneError):
    """A file cannot be downloaded, or is not the expected one."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file to download, and what is known of it."""

    url: str  # https, or http for this machine.
    max_bytes: int
    size: int | None = None  # Bytes, if known.
    sha256: str | None = None  # Hexadecimal, if known; without it an interrupted download starts again.
    longest_s: float = 6 * 3600.0
    rate_over_s: float = 30.0  # Time over which the rate is measured.
    timeout_s: float = 30.0  # Timeout of connecting, and of each wait for more bytes.

    def __post_init__(self) -> None:
        _check_address(self.url)

    def fetch(self, target: Path, on_progress: OnProgress = lambda _done, _total: None) -> str:
        """Downloads to `target`, which must not exist, and returns the file's SHA-256.

        The bytes go to a hidden file beside `target`, which takes its name at the end. Proxies are those of the
        environment (`https_proxy`, `no_proxy`).

        Raises:
            DownloadError: the file cannot be got, is too large, too slow or not the expected one; nothing is left behind
                but, if the hash is known, the part from which the next call goes on.
        """
        folder = target.parent
        part = folder / f".{target.name}.{(self.sha256 or 'new')[:12]}.part"
        is_new = not folder.exists()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with _locked(part) as file:
                try:
                    found = _Transfer(self, file, on_progress).run()
                    os.fsync(file.fileno())
                    part.replace(target)
                except BaseException:  # Only here: without the lock, the part is another process's.
                    if self.sha256 is None or not file.tell():
                        part.unlink(missing_ok=True)
                    raise
        except OSError as error:
            raise DownloadError(unwritable_message(target, error, "folder")) from error
        finally:
            if is_new and folder.exists() and not any(folder.iterdir()):
                folder.rmdir()
        return found


@dataclass(slots=True)
class _Transfer:
    """The requests for one file, until the file is complete."""

    source: RemoteFile
    file: BinaryIO
    on_progress: OnProgress
    digest: Any = field(default_factory=hashlib.sha256)
    done: int = 0
    is_joined: bool = False  # True if the bytes come from several replies.
    _received: int = 0  # Bytes in all,
    _useful: int = 0  # those of the file,
    _measured: int = 0  # and those of the file when the rate was last measured.
    _began_s: float = field(default_factory=time.monotonic)
    _measured_s: float = field(default_factory=time.monotonic)

    def run(self) -> str:
        """Returns the SHA-256 of the whole file."""
        while block := self.file.read(_BLOCK_BYTES):  # The bytes of an earlier call.
            self._count(block)
        self.is_joined = self.done > 0
        found = self._fetch()
        if self.source.sha256 not in (None, found) and self.is_joined:  # The older part may be the wrong one.
            self._restart()
            found = self._fetch()
        if self.source.sha256 not in (None, found):
            self._restart()
            raise self._error(
                f"it has SHA-256 {found}, not {self.source.sha256}: it was changed, or something on the way replaced it"
            )
        return found

    def _fetch(self) -> str:
        """Sends requests until the file is complete; returns its SHA-256."""
        # Characters outside of ASCII are sent as UTF-8; a host of such characters is decoded again by urllib.
        address = quote(self.source.url, safe=string.punctuation)
        opener = urllib.request.build_opener(_Handler(self._check_rate), _RedirectHandler(address))
        for attempt in range(1, _ATTEMPTS + 1):
            if self.source.sha256 is None:  # The server's file may be another one by now.
                self._restart()
            try:
                if self.done != self.source.size:
                    self._ask(opener, address)
                break
            except _InterruptedTransfer as error:
                if attempt == _ATTEMPTS:
                    raise self._error(f"{error}") from error
        self.file.flush()
        return str(self.digest.hexdigest())

    def _ask(self, opener: urllib.request.OpenerDirector, address: str) -> None:
        """Asks once for what is not there yet; raises an _InterruptedTransfer if another request may get the rest."""
        # Connecting may take that long.
        self._measured, self._measured_s = self._useful, time.monotonic() + self.source.timeout_s
        headers = {"User-Agent": "skylane", "Accept-Encoding": "identity"}
        if self.done:
            headers["Range"] = f"bytes={self.done}-"
        request = urllib.request.Request(address, headers=headers)  # noqa: S310 (RemoteFile checks it)
        try:
            with opener.open(request, timeout=self.source.timeout_s) as response:
                self._receive(response)
        except urllib.error.HTTPError as error:
            error.close()
            problem = f"the server answers {error.code} {printable(str(error.reason))[:100]}"
            if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and self.done:
                self._restart()
            elif error.code < http.client.INTERNAL_SERVER_ERROR:
                raise self._error(problem) from error
            raise _InterruptedTransfer(problem) from error
        except (urllib.error.URLError, ssl.SSLError, ConnectionError, TimeoutError, http.client.HTTPException) as error:
            cause = getattr(error, "reason", error)
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise self._error(f"its certificate is not trusted ({cause.verify_message})") from error
            raise _InterruptedTransfer(reason_of(cause)) from error
        except ValueError as error:
            raise self._error(f"an address or an answer is malformed ({printable(str(error))[:100]})") from error

    def _receive(self, response: Any) -> None:
        self._measured_s = time.monotonic()
        if self.done and response.status == http.client.PARTIAL_CONTENT:
            if not str(response.headers.get("Content-Range")).startswith(f"bytes {self.done}-"):
                self._restart()
                raise _InterruptedTransfer("the server sends another part of the file than the one that was asked for")
            self.is_joined = True
        elif response.status != http.client.OK:
            raise self._error(f"the server answers {response.status}, and not with the whole file")
        elif self.done:
            self._restart()
        encoding = response.headers.get("Content-Encoding", "")
        if encoding.strip().lower() not in ("", "identity"):
            raise self._error(f"it is sent as {printable(encoding)[:40]}, which is not the file itself")
        rest = response.headers.get("Content-Length", "")
        total = self.done + int(rest[:20]) if rest.isascii() and rest.isdigit() else None  # Python limits the digits.
        self._check_size(total)
        while block := _block(response, is_first=not self.done):
            self._useful += len(block)
            if not self.done and _MARKUP.match(block):
                raise self._error("it is an HTML or XML page, as a login page or an error page is")
            self._check_size(max(self.done + len(block), total or 0), is_whole=False)
            self.file.write(block)
            self._count(block)
            self.on_progress(self.done, self.source.size or total)
        if self.done < (total or self.source.size or 0):
            raise _InterruptedTransfer(f"the connection ended after {self.done} of {total or self.source.size} bytes")
        if not self.done:
            raise self._error("it is empty")

    def _check_rate(self, count: int) -> None:
        """Counts received bytes; raises a DownloadError if too few are of the file, or all of it takes too long."""
        self._received += count
        now_s, problem = time.monotonic(), ""
        if self._received > 2 * self._useful + _OTHER_BYTES:
            problem = f"the server sent {self._received} bytes, of which {self._useful} are of the file"
        elif now_s - self._began_s > self.source.longest_s:
            problem = f"it takes longer than {self.source.longest_s:g} s; {self.done} bytes are there"
        elif (passed_s := now_s - self._measured_s) > self.source.rate_over_s:
            rate = (self._useful - self._measured) / passed_s
            if rate < _LEAST_BYTES_PER_S:
                problem = f"{rate:.0f} bytes of it a second came, fewer than {_LEAST_BYTES_PER_S}"
            self._measured, self._measured_s = self._useful, now_s
        if problem:
            remedy = "try again" + (", which goes on from there" if self.source.sha256 else ", or from another server")
            raise self._error(f"{problem}: {remedy}")

    def _check_size(self, size: int | None, *, is_whole: bool = True) -> None:
        expected, most = self.source.size, self.source.max_bytes
        if size is None:
            return
        if expected is not None and (size > expected or (is_whole and size < expected)):
            self._restart()  # The received bytes belong to another file.
            raise self._error(f"it has {'more than ' * (not is_whole)}{size} bytes, not {expected}")
        if size > most:
            raise self._error(f"it has more than {most / 1e6:g} MB: allow more with --max-mb if that is right")

    def _restart(self) -> None:
        self.file.seek(0)
        self.file.truncate()
        self.digest, self.done, self.is_joined = hashlib.sha256(), 0, False

    def _count(self, block: bytes) -> None:
        self.digest.update(block)
        self.done += len(block)

    def _error(self, reason: str) -> DownloadError:
        return DownloadError(f"cannot download {self.source.url}: {reason}")


def _block(response: Any, *, is_first: bool) -> bytes:
    try:
        return bytes(response.read(_HEAD_BYTES) if is_first else response.read1(_BLOCK_BYTES))
    except OSError as error:  # An error of the network, not of the file that is written.
        raise _InterruptedTransfer(reason_of(error)) from error


class _InterruptedTransfer(Exception):  # noqa: N818 (it is no error yet)
    """The file is not all there; the message says why."""


class _RedirectHandler(urllib.request.HTTPRedirectHandler):
    """Follows few redirects, none off https, and none to a private address of another host."""

    max_redirections = MAX_REDIRECTS
    max_repeats = MAX_REDIRECTS

    def __init__(self, url: str) -> None:
        self._host = urlsplit(url).hostname

    def redirect_request(  # noqa: PLR0917  The parent's signature.
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        """See HTTPRedirectHandler."""
        fp.close()  # Nothing reads the answer itself, which may be endless.
        try:
            _check_address(newurl, must_be_https=urlsplit(req.full_url).scheme == "https")
        except DownloadError as error:
            raise DownloadError(f"{req.full_url} leads to another address: {error}") from error
        request, host = super().redirect_request(req, fp, code, msg, headers, newurl), urlsplit(newurl).hostname
        if host != self._host:
            with suppress(ValueError):  # A name, which may be looked up by a proxy only.
                _check_public(str(host), str(host))
        if request is not None:
            request.is_typed = host == self._host  # type: ignore[attr-defined]
        return request


class _Handler(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    """Connects as `_Connection` does, over TLS with the certificate authorities of this machine."""

    def __init__(self, on_bytes: Callable[[int], None]) -> None:
        super().__init__()
        self._options = {"on_bytes": on_bytes}

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """See HTTPSHandler."""
        kind: Any = partial(_HttpsConnection, may_be_private=_may_be_private(req), **self._options)
        return self.do_open(kind, req, context=ssl.create_default_context())

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """See HTTPHandler."""
        kind: Any = partial(_Connection, may_be_private=_may_be_private(req), **self._options)
        return self.do_open(kind, req)


class _Connection(http.client.HTTPConnection):
    """A connection that ends before it asks anything of a private address; `on_bytes` is called for what arrives."""

    def __init__(self, *arguments: Any, may_be_private: bool, on_bytes: Callable[[int], None], **options: Any) -> None:
        self.response_class: Any = partial(_Response, on_bytes=on_bytes)
        self._may_be_private = may_be_private
        super().__init__(*arguments, **options)

    def set_tunnel(self, *arguments: Any, **options: Any) -> None:
        """See HTTPConnection; the connection is to a proxy, which may have a private address."""
        self._may_be_private = True
        super().set_tunnel(*arguments, **options)

    def connect(self) -> None:
        """See HTTPConnection."""
        super().connect()
        if not self._may_be_private:
            try:
                _check_public(self.host, str(self.sock.getpeername()[0]))
            except DownloadError:
                self.close()
                raise


class _HttpsConnection(_Connection, http.client.HTTPSConnection):
    """Over TLS."""


class _Response(http.client.HTTPResponse):
    """An answer of which every byte is counted, also those of its headers."""

    def __init__(self, *arguments: Any, on_bytes: Callable[[int], None], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.fp = io.BufferedReader(_CountedBytes(self.fp.detach(), on_bytes))


class _CountedBytes(io.RawIOBase):
    """Reads from a socket and reports how many bytes arrived."""

    def __init__(self, raw: Any, on_bytes: Callable[[int], None]) -> None:
        self._raw, self._on_bytes = raw, on_bytes

    def readable(self) -> bool:
        """See RawIOBase."""
        return True

    def readinto(self, buffer: Any) -> int:
        """See RawIOBase."""
        count = int(self._raw.readinto(buffer))
        self._on_bytes(count)
        return count

    def close(self) -> None:
        """See RawIOBase."""
        self._raw.close()
        super().close()


def _check_public(host: str, address: str) -> None:
    """Raises a DownloadError for a private address, and a ValueError for a name."""
    if not ip_address(address.partition("%")[0]).is_global:
        raise DownloadError(f"{host} is the private address {address}: an answer from elsewhere must not lead there")


def _may_be_private(request: urllib.request.Request) -> bool:
    """Returns whether the user typed the host, or a proxy connects to it; see also `_Connection.set_tunnel`."""
    return request.has_proxy() or bool(getattr(request, "is_typed", True))


def _check_address(url: str, *, must_be_https: bool = False) -> None:
    """Raises a DownloadError unless an address begins with https://, or with http:// and leads to this machine."""
    try:
        parts = urlsplit(url if url.isprintable() and " " not in url else "")
        host = parts.hostname
        _ = parts.port, (host or "").encode("idna")
    except ValueError:
        host = None
    if not host or parts.scheme not in ("https", "http"):
        raise DownloadError(f"{printable(url)[:200]!r} is not an address: write https://host/path")
    if parts.scheme == "http" and (must_be_https or host not in _LOOPBACK):
        raise DownloadError(f"{url[:200]} is not https: http is for this machine only")
    if parts.username is not None:
        raise DownloadError(f"https://{host} has a user name before it: leave it out, as the address is kept in files")


@contextmanager
def _locked(part: Path) -> Iterator[BinaryIO]:
    """Opens the file of a part; raises a DownloadError if another process downloads it."""
    with open_own(part) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DownloadError(f"{part} is being downloaded by another process: wait for it") from None
        yield file
