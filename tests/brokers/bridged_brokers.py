"""Two Mosquittos, of which the first one is connected to the second one by mosquitto/bridge.conf."""

import getpass
import queue
import re
from pathlib import Path

from ops.broker.broker import Broker
from ops.broker.certificate_authority import CertificateAuthority, Role
from ops.broker.mosquitto import MosquittoListener, write_config, write_secured_config
from shared.package_data import shipped
from tests.pipeline.rig import WAIT_S, connect
from tests.support.faults.rig import MODEL, Rig
from tests.support.mqtt_bus import free_port

# Optional lines of bridge.conf begin like this.
CONTROL = "topic skylane/v1/control/", "topic skylane/v1/replies/"
_CERTIFICATES = "bridge_cafile ", "bridge_certfile ", "bridge_keyfile "


class BridgedBrokers:
    """The broker `here`, with the bridge, and the broker `there`, which can be killed and started again."""

    def __init__(self, rig: Rig, folder: Path, *optional: str) -> None:
        """Starts both and waits until they are connected. `optional`: beginnings of optional lines to use."""
        self._rig = rig
        self._port = free_port()
        self.there = rig.broker(self._port)
        config = write_config(folder / "bridged.conf", MosquittoListener("127.0.0.1", free_port()))
        append(config, bridge_lines(self._port, *optional))
        self.here = rig.enter(Broker.start(config=config))
        self.wait_until_connected()

    def restart_there(self) -> None:
        """Starts the killed broker again and waits until the two are connected."""
        self.there = self._rig.broker(self._port)
        self.wait_until_connected()

    def wait_until_connected(self) -> None:
        """Waits for the state that `notifications_local_only` makes Mosquitto publish."""
        states: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        with connect(self.here.url) as bus:
            bus.subscribe("$SYS/broker/connection/+/state", 1, lambda delivery: states.put(bytes(delivery.payload)))
            while states.get(timeout=WAIT_S) != b"1":
                pass


def secured_pair(rig: Rig, authority: CertificateAuthority, folder: Path) -> tuple[Broker, Broker]:
    """Starts two secured brokers with the certificates of one authority; returns the one with the bridge first."""
    authority.broker(["127.0.0.1"], 1)
    authority.node(Role.VEHICLE, "bridge", 1)
    configs, ports = [], (free_port(), free_port())
    for name, port in zip(("here", "there"), ports, strict=True):
        (folder / name).mkdir()
        listener = MosquittoListener("127.0.0.1", port, tls=True)
        config = write_secured_config(folder / name, listener, authority.folder)
        text = re.sub(r"(?m)^user .*\n", "", config.read_text(encoding="utf-8"))
        config.write_text(f"{text}user {getpass.getuser()}\n")  # Only this user can read the test's folder.
        configs.append(config)
    append(folder / "there" / "acl", (shipped("mosquitto") / "bridge.acl").read_text(encoding="utf-8"))
    lines = bridge_lines(ports[1], *_CERTIFICATES)
    append(configs[0], lines.replace("/mosquitto/certs", str(authority.folder)))
    there = rig.enter(Broker.start(config=configs[1]))
    return rig.enter(Broker.start(config=configs[0])), there


def append(file: Path, text: str) -> None:
    """Appends to a text file."""
    file.write_text(file.read_text(encoding="utf-8") + text, encoding="utf-8")


def bridge_lines(port: int, *optional: str) -> str:
    """Returns the shipped lines for another broker on this machine, with some of the lines that are commented out."""
    lines = (shipped("mosquitto") / "bridge.conf").read_text(encoding="utf-8")
    lines, addresses = re.subn(r"(?m)^address .*$", f"address 127.0.0.1:{port}", lines)
    lines, models = re.subn("road-small", MODEL, lines)
    assert (addresses, models) == (1, 1)
    for beginning in optional:
        lines, used = re.subn(rf"(?m)^#({re.escape(beginning)}.*)$", r"\1", lines)
        assert used == 1
    return lines
