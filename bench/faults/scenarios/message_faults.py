"""Message faults: repeated, out of order, without acknowledgement, too large."""

from collections.abc import Sequence
from pathlib import Path

from bench.faults.rig.connections import reconnects
from bench.faults.rig.mqtt_proxy import PUBACK, MqttProxy, Packet
from bench.faults.rig.rig import Rig
from bench.faults.scenario import Figure, Finding, scenario
from ops.broker.mosquitto import MosquittoListener, write_config
from ops.link.link import LOOPBACK
from ops.processes.environment import free_port
from shared.messages.topics import PREFIX
from shared.runlog.latency_log import Outcome

_TIMES = 3
_STEP = 60  # Number of frames in each part of the run.
_DROPPED_ACKS = 12  # Number of dropped acknowledgements; a broker allows 20 unacknowledged messages.
_LIMIT_BYTES = 100_000
_LARGER = (240, 320)  # Size in pixels: raw, more than twice the limit.


class Disorder:
    """A proxy rule that repeats messages of one kind of topic and swaps every two; others are unchanged."""

    def __init__(self, kind: str, times: int) -> None:
        """Creates the rule for a topic's first level `kind`, for example `masks`."""
        self.is_on = False
        self.repeated = 0  # Number of additional copies.
        self.passed = 0
        self._prefix = f"{PREFIX}/{kind}/"
        self._times = times
        self._held: list[Packet] = []

    def __call__(self, packet: Packet) -> Sequence[Packet]:
        """Returns the packets to forward."""
        if not packet.topic.startswith(self._prefix):
            return (packet,)
        held, self._held = self._held, []
        copies = [packet] * (self._times if self.is_on else 1)
        self.repeated += len(copies) - 1
        if self.is_on and not held:
            self._held = copies
            return ()
        self.passed += len(copies) + len(held)
        return [*copies, *held]


@scenario(
    13,
    "repeated",
    "acknowledgements swallowed, frames sent twice, masks three times, and all of them out of order",
    "one mask a frame is taken, every other one is counted",
)
def repeated(rig: Rig) -> Finding:
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
    return Finding(
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


@scenario(
    14,
    "too-large",
    "every other frame is larger than the broker takes",
    "refused without a reconnect; the smaller ones flow",
)
def too_large(rig: Rig) -> Finding:
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
    return Finding(
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
