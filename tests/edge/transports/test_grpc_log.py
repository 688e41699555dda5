"""Log output of the gRPC library about a worker without TLS."""

import subprocess
import sys

import pytest

START = "from skylane import cli\ntry: cli.main(['--help'])\nexcept SystemExit: pass\n"
CALL = """
import socket, threading
import grpc

def answer():
    connection, _ = listener.accept()
    with connection:
        connection.recv(1 << 16)
        connection.sendall(b"no TLS" * 100)

with socket.create_server(("127.0.0.1", 0)) as listener:
    thread = threading.Thread(target=answer)
    thread.start()
    with grpc.secure_channel(f"127.0.0.1:{listener.getsockname()[1]}", grpc.ssl_channel_credentials()) as channel:
        try:
            channel.unary_unary("/any/Call")(b"", timeout=60)
        except grpc.RpcError:
            pass
    thread.join()
"""


@pytest.mark.parametrize(("code", "is_logged"), [(START + CALL, False), (CALL, True)])
def test_a_broken_handshake_fills_no_log(code: str, *, is_logged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skylane turns off the line that the library writes for every attempt; without Skylane it appears."""
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=180)
    assert ("Handshake failed" in done.stderr) is is_logged
