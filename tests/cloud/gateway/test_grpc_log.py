"""What gRPC's library writes of strangers."""

import subprocess
import sys
from pathlib import Path

import pytest

from shared.authority import Authority

FRONT_DOOR = "import skylane\ntry: skylane.main(['--help'])\nexcept SystemExit: pass\n"
STRANGER = """
import socket, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import grpc
certificate = Path(sys.argv[1])
pair = (certificate.with_suffix(".key").read_bytes(), certificate.read_bytes())
with ThreadPoolExecutor(1) as threads:
    server = grpc.server(threads)
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    server.start()
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(b"no TLS" * 100)
        try:
            while stranger.recv(100):
                pass
        except ConnectionResetError:
            pass
    server.stop(0).wait()
"""


@pytest.mark.parametrize(("code", "is_told"), [(FRONT_DOOR + STRANGER, False), (STRANGER, True)])
def test_a_stranger_fills_no_log(code: str, *, is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for each broken handshake fills a disk; that the library alone writes it shows that it is looked for."""
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)
    certificate = Authority(tmp_path).broker(["127.0.0.1"], 1).file
    command = [sys.executable, "-c", code, str(certificate)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert ("Handshake failed" in done.stderr) is is_told
