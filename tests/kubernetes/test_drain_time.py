"""The manifest grants a worker as much time as its longest drain takes, and the autoscalers wait for it."""

import re
import threading

import pytest

import cloud.node
from cloud.gateway.limits import DEFAULT_TIMEOUTS
from shared import clock
from shared.errors import SkylaneError
from tests.kubernetes.rendering import OVERLAYS, ROOT, container_of, kinds, needs_kubectl, pod_of
from tests.support.gateway import WAIT_S, open_gateway
from tests.support.tiny_model import frame, model

# An engine that hangs delays three of the waits of `CloudNode.serve`: for the decoder, which waits for a place in the
# batch, for the engine's own thread, and at last for all threads.
HANGING_WAITS = 3
REST_S = 20.0  # Announcements to the broker, 2 s each, and the 5 s that callers of HTTP and gRPC have.


def pre_stop_s(overlay: str) -> float:
    """Returns how long the kubelet runs the preStop command before it sends SIGTERM."""
    program, seconds = container_of(overlay, "worker")["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    return float(seconds)


def grace_s(overlay: str) -> float:
    """Returns the time from the start of the preStop command to SIGKILL."""
    return float(pod_of(overlay, "worker")["spec"]["terminationGracePeriodSeconds"])


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_grace_period_is_longer_than_the_longest_drain(overlay: str) -> None:
    """SIGKILL in the middle of a drain loses the frames that the worker holds, until their vehicles send them again."""
    assert grace_s(overlay) >= pre_stop_s(overlay) + HANGING_WAITS * cloud.node.DRAIN_S + REST_S
    assert DEFAULT_TIMEOUTS.shutdown_grace_s < REST_S
    assert pre_stop_s(overlay) > 0


@needs_kubectl
def test_the_guide_has_the_sum() -> None:
    """The page shows an operator how long a worker may need."""
    guide = (ROOT / "docs" / "guides" / "kubernetes.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| all together \| (\d+) s, of (\d+) s", guide, re.MULTILINE)
    needed_s = pre_stop_s("secured") + HANGING_WAITS * cloud.node.DRAIN_S + REST_S
    assert tuple(map(float, row)) == (needed_s, grace_s("secured"))


@needs_kubectl
def test_autoscalers_remove_the_next_worker_only_after_the_grace_period() -> None:
    """Two workers that drain at the same time take more capacity away than the autoscaler has decided."""
    (plain,) = kinds("autoscaling/hpa", "HorizontalPodAutoscaler")
    (keda,) = kinds("autoscaling/keda", "ScaledObject")
    for behavior in (
        plain["spec"]["behavior"],
        keda["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"],
    ):
        (policy,) = behavior["scaleDown"]["policies"]
        assert (policy["type"], policy["value"]) == ("Pods", 1)
        assert policy["periodSeconds"] >= grace_s("secured")


def test_a_worker_whose_engine_hangs_ends_within_the_waits_that_are_granted() -> None:
    """The number of waits is counted with the real node, with shorter waits and frames at every stage."""
    entered, hang, ended = threading.Event(), threading.Event(), threading.Event()
    drain_s = 1.0
    raised: list[BaseException] = []

    def infer() -> None:
        """Does not return until the end of the test."""
        entered.set()
        hang.wait()

    def work() -> None:
        """Runs the worker and stops it while it holds more frames than its batcher has places for."""
        try:
            with open_gateway(model(infer), http="127.0.0.1:0", grpc="127.0.0.1:0", drain_s=drain_s) as worker:
                for number in range(8):
                    worker.node.submission.put(frame(number), received_ns=clock.now_ns(), max_reply_bytes=1 << 20)
                assert entered.wait(WAIT_S)
        except SkylaneError as error:
            raised.append(error)
        ended.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert ended.wait(HANGING_WAITS * drain_s + REST_S)
    finally:
        hang.set()
        thread.join()
    assert "did not end within" in str(raised)
