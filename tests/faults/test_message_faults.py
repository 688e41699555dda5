"""Message faults: repeated, out of order, without acknowledgement, too large."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from ops.broker.mosquitto import MosquittoListener, write_config
from ops.link.link import LOOPBACK
from shared.network.endpoint import free_port
from shared.runlog.latency_log import Outcome
from tests.support.faults.connections import reconnects
from tests.support.faults.finding import Figure
from tests.support.faults.mqtt_proxy import PUBACK, Disorder, MqttProxy, Packet
from tests.support.faults.rig import Rig

_TIMES = 3
_STEP = 60  # Number of frames in each part of the run.
_DROPPED_ACKS = 12  # Number of dropped acknowledgements; a broker allows 20 unacknowledged messages.
_LIMIT_BYTES = 100_000
_LARGER = (240, 320)  # Size in pixels: raw, more than twice the limit.


@pytest.mark.faults(
    13,
    "acknowledgements swallowed, frames sent twice, masks three times, and all of them out of order",
    "one mask a frame is taken, every other one is counted",
)
def test_repeated(rig: Rig) -> None:
    """A proxy drops acknowledgements and closes the connection; then it repeats and swaps all frames and masks."""
    broker = rig.broker()
    rig.worker(broker.url)
    proxy = rig.enter(MqttProxy((broker.listener.host, broker.listener.port)))
    frames, masks = Disorder("frames", 2), Disorder("masks", _TIMES)
    proxy.to_broker, proxy.to_client = frames, masks
    vehicle = rig.vehicle(proxy.url, pictures=6 * _STEP)
    rig.wait_for_frames([vehicle], _STEP)
    swallowed = []

    def without_acknowledgements(packet: Packet) -> Sequence[Packet]:
        if packet.kind != PUBACK:
            return masks(packet)
        swallowed.append(packet)
        return ()

    proxy.to_client = without_acknowledgements
    rig.wait(lambda: len(swallowed) >= _DROPPED_ACKS, "acknowledgements to swallow")
    proxy.hang_up()
    proxy.to_client = masks
    rig.wait_for_frames([vehicle], _STEP)
    frames.is_on = masks.is_on = True
    rig.wait_for_frames([vehicle], 2 * _STEP)
    frames.is_on = masks.is_on = False
    vehicle.wait()
    accounts = rig.end_vehicles()
    taken = accounts.outcomes[Outcome.ANSWERED]
    rig.conclude(
        accounts,
        Figure("acknowledgements swallowed", len(swallowed)),
        Figure("frames repeated", frames.repeated),
        Figure("masks repeated", masks.repeated),
        Figure("masks delivered", masks.passed),
        Figure("duplicates removed", accounts.ignored.total()),
        Figure("masks neither taken nor removed", abs(masks.passed - taken - accounts.ignored.total()), most=0),
        Figure("frames not answered", accounts.read - taken, most=0),
        broken=() if frames.repeated and masks.repeated else ("nothing was repeated: the fault did not happen",),
    )


@pytest.mark.faults(
    14,
    "every other frame is larger than the broker takes",
    "refused without a reconnect; the smaller ones flow",
)
def test_too_large(rig: Rig) -> None:
    """Every other frame exceeds the broker's limit, with a broker that announces its limit and one that does not."""
    source = rig.pictures(40)
    for picture in rig.pictures(40, *_LARGER).iterdir():
        (source / f"{picture.stem}~larger.png").write_bytes(picture.read_bytes())
    came_again = 0
    for name, setting in (("announced", "max_packet_size"), ("not-announced", "message_size_limit")):
        log = rig.folder / f"broker-{name}.log"
        broker = rig.broker(config=_limited(rig.folder / f"broker-{name}.conf", setting), log=log)
        rig.worker(broker.url, f"worker-{name}")
        rig.vehicle(broker.url, name, source=source, flags=("--resize-at", "cloud", "--resize", "stretch")).wait()
        came_again += reconnects(log, f"skylane-vehicle-{name}")
    small = [row for row in rig.rows() if int(row["frame_index"]) % 2 == 0]
    larger = [row for row in rig.rows() if int(row["frame_index"]) % 2]
    before = sum(row["reason"].startswith("too_large") and row["attempts"] == "0" for row in larger)
    by_broker = sum(row["reason"].startswith("broker_refused") for row in larger)
    rig.conclude(
        rig.end_vehicles(),
        Figure("refused before publishing", before),
        Figure("refused by a broker", by_broker),
        Figure("larger frames not refused", len(larger) - before - by_broker, most=0),
        Figure("smaller frames not answered", sum(row["outcome"] != Outcome.ANSWERED for row in small), most=0),
        Figure("reconnects", came_again, most=0),
    )


def _limited(path: Path, setting: str) -> Path:
    """Writes a broker configuration with a smaller value of one of its two limits."""
    listener = MosquittoListener(LOOPBACK, free_port())
    lines = write_config(path, listener).read_text(encoding="utf-8").splitlines()
    lines = [f"{setting} {_LIMIT_BYTES}" if line.startswith(f"{setting} ") else line for line in lines]
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return path
