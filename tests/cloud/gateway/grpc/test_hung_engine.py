"""An engine that hangs in the thread of a gRPC call."""

import re
import subprocess
import sys

from tests.support.gateway import WAIT_S

_WORKER = """
import threading
import grpc
from cloud.gateway.limits import GatewayTimeouts
from shared.messages.frame import pack_frame
from shared.messages.protobuf_fields import pack
from tests.support.tiny_model import Engine, frame, model
from tests.support.gateway import WAIT_S, open_gateway

entered = threading.Event()

class Hung(Engine):
    is_reentrant = True

    def infer(self, batch):
        entered.set()
        threading.Event().wait()

timeouts = GatewayTimeouts(shutdown_grace_s=0.1)
with open_gateway(model(engine=Hung()), grpc="127.0.0.1:0", timeouts=timeouts, drain_s=0.1) as worker:
    with grpc.insecure_channel(worker.grpc) as channel:
        call = channel.unary_unary("/skylane.v1.Worker/Answer").future(pack(pack_frame(frame(1))))
        assert entered.wait(WAIT_S)
"""


def test_a_worker_with_a_hung_engine_can_end() -> None:
    """Otherwise only a kill would end it, and its supervisor would not learn the reason."""
    done = subprocess.run(
        [sys.executable, "-c", _WORKER], capture_output=True, text=True, timeout=3 * WAIT_S, check=False
    )
    assert re.search(r"SkylaneError: thread \S+ did not end", done.stderr), done.stderr
    assert done.returncode == 1
