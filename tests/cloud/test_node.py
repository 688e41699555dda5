import threading
from dataclasses import replace

import numpy as np
import pytest

from shared.imaging import image_codecs
from shared.messages.frame import Status
from shared.messages.node_status import NodeStatus, unpack_status
from tests.support.gateway import WAIT_S, Gate, Sender, open_gateway
from tests.support.tiny_model import HEIGHT, WIDTH, frame, model


def _threads() -> set[str]:
    return {
        thread.name
        for thread in threading.enumerate()
        if thread.name.startswith(("decoder", "engine", "postpro", "refus"))
    }


def test_every_frame_gets_its_own_mask() -> None:
    """This holds for several models and decoders; the stamps of a reply are in order."""
    with open_gateway(model(), model(name="other"), http=None, decoders=3) as worker:
        sender = Sender(worker.bus)
        for sequence in range(30):
            sender.send(frame(sequence), frame(sequence + 100, "other"))
        answers = sender.replies(60)
        assert worker.node.counts == {"answered": 60}
    for name, first in (("tiny", 0), ("other", 100)):
        sequences = sorted(answer.id.sequence for answer in answers if answer.model == name)
        assert sequences == list(range(first, first + 30))
    for answer in answers:
        mask = image_codecs.decode_mask(answer.data, "raw", (HEIGHT, WIDTH))
        np.testing.assert_array_equal(mask, np.full((HEIGHT, WIDTH), answer.id.sequence, np.uint8))
        assert [stamp.at_ns for stamp in answer.stamps] == sorted(stamp.at_ns for stamp in answer.stamps)
        assert {stamp.node for stamp in answer.stamps} == {"cloud/w/s9"}
    assert not _threads()


def test_a_stopped_worker_serves_all_admitted_frames() -> None:
    """The last replies are sent before the connection is closed."""
    gate = Gate()
    gate.close()
    with open_gateway(model(gate), http=None) as worker:
        sender = Sender(worker.bus)
        sender.send(*(frame(sequence) for sequence in range(20)))
        assert gate.reached.wait(WAIT_S)
        worker.node.stop()
        gate.open()
        assert {answer.status for answer in sender.replies(20)} == {Status.ANSWERED}
    assert not _threads()


def test_a_fault_of_the_bus_stops_the_worker() -> None:
    """An exception on the network thread is raised by `serve`."""
    with pytest.raises(KeyError, match="lost"), open_gateway(model(), http=None) as worker:
        worker.node.threads.fault(KeyError("lost"))


def test_a_reconnect_announces_the_worker_again() -> None:
    """A restarted broker has lost its retained messages."""
    statuses: list[NodeStatus] = []
    with open_gateway(model(), http=None) as worker:
        worker.bus.subscribe(
            "skylane/v1/status/worker/w", 1, lambda delivery: statuses.append(unpack_status(delivery.payload))
        )
        worker.node.announce()
        Sender(worker.bus).answer_to(frame(1))
        assert statuses[1] == replace(statuses[0], age_ms=statuses[1].age_ms)  # It may be a millisecond older.
