"""The false load of a lying worker: what is replaced, and what is not."""

from msgspec.structs import replace

from bench.faults.hostile.false_load import FalseLoad
from bench.faults.rig.mqtt_proxy import PUBLISH, Packet, encoded_length
from shared.messages.frame import ResultMessage, Status, pack_result, unpack_result
from shared.messages.load import LoadReport, WorkerLoad, pack_load, unpack_load
from shared.messages.topics import LOADS, MASKS, WORKER_STATUS, FrameId

_TRUE = WorkerLoad(queue=9, free=1, wait_ms=900.0, answer_ms=500.0, spacing_ms=500.0)
_CLAIM = WorkerLoad(queue=0, free=64, wait_ms=0.0, answer_ms=1.0, spacing_ms=1.0)


def _published(topic: str, payload: bytes) -> Packet:
    body = len(topic).to_bytes(2) + topic.encode() + b"\0" + payload
    start = bytes([PUBLISH << 4]) + encoded_length(len(body))
    return Packet(start + body, len(start))


def test_reports_and_replies_are_false_and_everything_else_is_true() -> None:
    """A lie in one of the two places alone would be corrected by the other one."""
    false_load = FalseLoad(_CLAIM)
    (report,) = false_load(_published(LOADS.of(worker="w"), pack_load(LoadReport("s1", {"m": _TRUE}))))
    assert unpack_load(report.payload) == LoadReport("s1", {"m": _CLAIM})
    answer = ResultMessage(FrameId("car", "left", "s1", 1), 1, Status.OVERLOADED, "w", reason="full", load=_TRUE)
    (reply,) = false_load(_published(MASKS.of(vehicle="car", camera="left"), pack_result(answer)))
    assert unpack_result(reply.payload) == replace(answer, load=_CLAIM)
    assert false_load.replaced == 2
    for topic, payload in ((LOADS.of(worker="w"), b""), (WORKER_STATUS.of(worker="w"), b"status")):
        packet = _published(topic, payload)
        assert list(false_load(packet)) == [packet]
    assert false_load.replaced == 2
