"""Checks before a worker loads its models: settings of the gateway, and the most threads of a worker."""

import logging
import os
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cloud.config import CloudConfig
from cloud.preflight import GatewayError, check_gateway, max_threads, warn_if_pids_limit_is_low
from ops.broker.certificate_authority import CertificateAuthority
from shared.errors import SkylaneError
from shared.runtime.machine import usable_cores
from shared.threads import ThreadsExhaustedError, check_threads_available


def test_a_key_with_a_password_is_an_error(tmp_path: Path) -> None:
    """OpenSSL would prompt at the terminal, where the start of a service would wait forever."""
    certificate = CertificateAuthority(tmp_path / "certs").broker(["127.0.0.1"], 1).file
    locked = tmp_path / "locked.key"
    unlocked = certificate.with_suffix(".key")
    command = ["openssl", "pkcs8", "-topk8", "-passout", "pass:secret", "-in", str(unlocked), "-out", str(locked)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    check_gateway(CloudConfig(http="127.0.0.1:0", gateway_tls_cert=certificate, gateway_tls_key=unlocked))
    with pytest.raises(GatewayError, match=r"locked\.key is protected by a password"):
        check_gateway(CloudConfig(http="127.0.0.1:0", gateway_tls_cert=certificate, gateway_tls_key=locked))


def test_an_expired_certificate_is_an_error_with_its_date(tmp_path: Path) -> None:
    """Otherwise callers would reject it, long after the models were loaded."""
    CertificateAuthority(tmp_path)
    issued = datetime.now(UTC) - timedelta(days=30)
    certificate = CertificateAuthority(tmp_path, now=issued).broker(["127.0.0.1"], 5).file
    settings = CloudConfig(
        http="127.0.0.1:0", gateway_tls_cert=certificate, gateway_tls_key=certificate.with_suffix(".key")
    )
    with pytest.raises(SkylaneError, match=rf"server\.crt expired on {issued + timedelta(days=5):%Y-%m-%d}"):
        check_gateway(settings)


WAIT_S = 120.0

_BUSY_GRPC = """
import os, threading
import grpc
from cloud.config import CloudConfig
from cloud.preflight import max_threads
from shared.messages.frame import pack_frame
from shared.messages.protobuf_fields import pack
from tests.support.tiny_model import Engine, frame, model
from tests.support.gateway import open_gateway

go = threading.Event()

class Slow(Engine):
    def infer(self, batch):
        assert go.wait(60)
        return super().infer(batch)

with open_gateway(model(engine=Slow()), max_calls=16) as doors:
    channels = [
        grpc.insecure_channel(doors.grpc, options=(("grpc.use_local_subchannel_pool", 1),)) for _ in range(8)
    ]
    calls = [
        channel.unary_unary("/skylane.v1.Worker/Answer").future(pack(pack_frame(frame(8 * place + number))))
        for place, channel in enumerate(channels)
        for number in range(8)
    ]
    while sum(call.done() for call in calls) < 48:  # Those beyond sixteen are refused.
        threading.Event().wait(0.05)
    bound = max_threads(CloudConfig(http=":0", grpc=":0", max_calls=16), 1)
    print(len(os.listdir("/proc/self/task")), bound)
    go.set()
    for channel in channels:
        channel.close()
"""


def test_a_worker_with_a_busy_gateway_stays_within_the_limit() -> None:
    """Operators set pids_limit by this number."""
    done = subprocess.run(
        [sys.executable, "-c", _BUSY_GRPC], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    threads, bound = map(int, done.stdout.split())
    assert 16 < threads <= bound


def test_the_documented_example_is_correct(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/guides/sizing.md and docker-compose.yml use it."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert usable_cores() == 8
    text = (Path(__file__).parents[2] / "docs" / "guides" / "sizing.md").read_text(encoding="utf-8")
    both = max_threads(CloudConfig(http=":0", grpc=":0"), 3)
    broker_alone = max_threads(CloudConfig(), 3)
    assert f"at most {broker_alone} threads, and {both} with both ports" in " ".join(text.split())


def test_a_pids_limit_that_is_too_low_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise it would fail only under load."""
    caplog.set_level(logging.INFO, "skylane.cloud")
    settings = CloudConfig(http=":0", grpc=":0")
    limit = tmp_path / "pids.max"
    for text in ("max\n", "4096\n"):
        limit.write_text(text)
        warn_if_pids_limit_is_low(settings, 3, limit)
    warn_if_pids_limit_is_low(settings, 3, tmp_path / "none")
    assert not caplog.records
    limit.write_text("256\n")
    warn_if_pids_limit_is_low(settings, 3, limit)
    (record,) = caplog.records
    assert isinstance(record.msg, dict)
    assert (record.levelname, record.msg["pids_limit"]) == ("WARNING", 256)
    assert record.msg["threads"] == max_threads(settings, 3)


def test_the_check_ends_its_threads() -> None:
    """The check must not leave threads behind."""
    check_threads_available(50)
    assert not [thread for thread in threading.enumerate() if thread.name == "thread-check"]
    assert "pids_limit" in str(ThreadsExhaustedError())


_NO_MORE_THREADS = """
import os, resource
from cloud.gateway.grpc.server import GrpcThreadPool

pool = GrpcThreadPool(16)
if os.getuid() == 0:
    os.setuid(65534)  # The limit does not hold for root.
resource.setrlimit(resource.RLIMIT_NPROC, (1, resource.getrlimit(resource.RLIMIT_NPROC)[1]))
print(sum(call.result(30) for call in [pool.submit(int, "1") for _ in range(20)]))
"""


def test_grpc_calls_wait_for_a_free_thread() -> None:
    """An exception would end the thread in which grpcio accepts calls."""
    done = subprocess.run(
        [sys.executable, "-c", _NO_MORE_THREADS], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.stdout == "20\n", done.stderr
    assert "gRPC calls wait for a thread" in done.stderr
