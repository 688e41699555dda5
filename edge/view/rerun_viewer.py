"""Rerun's server and web page, as a child process of the view."""

import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote, urlsplit

import rerun as rr
import rerun_cli

from edge.sinks.rerun import APPLICATION, RerunScene
from edge.view.viewer import ViewError, ViewSettings, free_port, ipv4_address
from shared.network.http_server import BoundedHandler, BoundedHttpServer
from shared.runtime.processes import terminate

_PAGE_PORT, _DATA_PORT = 9090, 9876  # Rerun's own defaults.
_START_S = 20.0
_RESPONSE_S = 300.0  # Time limit of a response: a page has 30 MB, and a link may be slow.
_FLUSH_S = 1.0
_POLL_S = 0.02
_FOREIGN_LINKS = re.compile(rb"<link\b[^>]*https://[^>]*>")  # Fonts; a browser connects before it reads the policy.


class RerunViewer:
    """See Viewer. The page is served from this machine, and no usage data is collected."""

    def __init__(self, settings: ViewSettings) -> None:
        """Starts the server and connects to it.

        Raises:
            ViewError: the server does not start.
        """
        host = ipv4_address(settings.host)
        data_port, inner_port = free_port(host, _DATA_PORT), free_port(host)
        self._page = _PageServer(host, free_port(host, _PAGE_PORT), f"{host}:{inner_port}", f"{host}:{data_port}")
        self._home = tempfile.TemporaryDirectory(prefix="skylane-view-")
        # `bin/rerun` is a launcher, which would leave the server behind.
        program = Path(rerun_cli.__file__).with_name("rerun")
        options = {
            "--bind": host,
            "--port": str(data_port),
            "--web-viewer-port": str(inner_port),
            "--server-memory-limit": f"{settings.history_mb}MB",
        }
        words = [word for option in options.items() for word in option]
        # Ctrl-C reaches this process only, which then ends the server. If it is killed, the server ends too.
        guard = shutil.which("setpriv")
        self._server = subprocess.Popen(
            [
                *((guard, "--pdeathsig", "KILL") if guard else ()),
                program,
                "--serve-web",
                "--hide-welcome-screen",
                *words,
            ],
            process_group=0 if guard else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "RUST_LOG": "warn", **without_usage_data(Path(self._home.name))},
        )
        source = f"rerun+http://{host}:{data_port}/proxy"
        self.note = f"history: the last {settings.history_mb} MB"
        self.address = f"http://{host}:{self._page.server_port}/?url={quote(source, safe='')}"
        self._recording: rr.RecordingStream | None = None
        for port in (data_port, inner_port):
            self._wait_until_open(host, port)
        self._recording = rr.RecordingStream(APPLICATION, batcher_config=rr.ChunkBatcherConfig.LOW_LATENCY())
        self._recording.connect_grpc(source)
        self.scene = RerunScene(self._recording, settings.card)
        threading.Thread(target=self._page.serve_forever, name="page", daemon=True).start()

    def check(self) -> None:
        """See Viewer."""
        if self._server.poll() is not None:
            raise ViewError(f"Rerun's server has ended with code {self._server.returncode}")
        if self._recording is not None:
            try:
                self._recording.flush()  # A slow page would fill the memory of this process.
            except RuntimeError as error:
                raise ViewError(f"Rerun's server does not answer: {error}") from error

    def close(self) -> None:
        """See Viewer."""
        if self._recording is not None:
            with suppress(RuntimeError):  # The server has ended, or hangs.
                self._recording.flush(timeout_sec=_FLUSH_S)
                self._recording.disconnect()
        self._page.server_close()
        terminate(self._server, _FLUSH_S)
        self._home.cleanup()

    def _wait_until_open(self, host: str, port: int) -> None:
        until_s = time.monotonic() + _START_S
        while True:
            with suppress(OSError), socket.create_connection((host, port), timeout=_START_S):
                return
            self.check()
            if time.monotonic() > until_s:
                terminate(self._server, _FLUSH_S)
                raise ViewError(f"Rerun's server does not answer on {host}:{port} after {_START_S:g} s")
            time.sleep(_POLL_S)


class _PageServer(BoundedHttpServer):
    """Passes on Rerun's page with a policy by which a browser connects to this machine only.

    Without it, the page sends usage data, asks for new releases and fetches fonts.
    """

    def __init__(self, host: str, port: int, page: str, data: str) -> None:
        """`page` and `data`: HOST:PORT of the servers of the page and of the data."""
        super().__init__(host, port, _PageHandler, response_s=_RESPONSE_S)
        self.page = page
        self.policy = (
            "default-src 'self' 'unsafe-inline' 'wasm-unsafe-eval' blob: data:; frame-ancestors 'none'; "
            f"connect-src 'self' blob: data: http://{data}"
        )


class _PageHandler(BoundedHandler):
    server: _PageServer

    def do_GET(self) -> None:  # noqa: N802  Required by the base class.
        """Answers a request as Rerun's server does."""
        with closing(HTTPConnection(self.server.page, timeout=_START_S)) as connection:
            connection.request("GET", urlsplit(self.path).path)
            answer = connection.getresponse()
            body = answer.read()
        kind = answer.getheader("Content-Type", "application/octet-stream")
        if kind.startswith("text/html"):
            body = _FOREIGN_LINKS.sub(b"", body)
        self.send_response(answer.status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", self.server.policy)
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        self.wfile.write(body)


def without_usage_data(folder: Path) -> dict[str, str]:
    """Returns the variables of an environment in which Rerun neither collects nor sends usage data; writes into a folder."""
    settings = folder / "rerun" / "analytics.json"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(
        json.dumps(
            {
                "analytics_enabled": False,
                "analytics_id": "",
                "metadata": {},
                "config_file_path": str(settings),
                "data_dir_path": str(folder / "data"),
            }
        ),
        encoding="utf-8",
    )
    return {"XDG_CONFIG_HOME": str(folder), "XDG_DATA_HOME": str(folder), "TELEMETRY_ENABLED": "false"}
