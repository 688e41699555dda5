"""What gRPC's library writes of a worker that speaks no TLS."""

import subprocess
import sys

import pytest

FRONT_DOOR = "import skylane\ntry: skylane.main(['--help'])\nexcept SystemExit: pass\n"
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


@pytest.mark.parametrize(("code", "is_told"), [(FRONT_DOOR + CALL, False), (CALL, True)])
def test_a_broken_handshake_fills_no_log(code: str, *, is_told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for each attempt, for as long as the worker is wrong; the library alone writes it: it is looked for."""
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=180)
    assert ("Handshake failed" in done.stderr) is is_told
