"""Wrong set-ups, made for real: doctor names the cause and the command that mends each, and its exit code tells how bad it is."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import msgpack
import pytest

from cloud.node import CloudNode
from ops.broker.broker import Broker
from ops.broker.certificate_authority import CertificateAuthority, Role
from ops.processes.null_worker import NullWorkerProcess, NullWorkerSettings
from shared.messages.node_status import NodeState, NodeStatus, pack_status
from shared.messages.topics import VEHICLE_STATUS, WORKER_STATUS
from shared.mqtt.broker_options import BrokerOptions
from shared.mqtt.bus import Bus
from tests.pipeline.rig import serving
from tests.support.bad_certificates import copy_pair, use_expired
from tests.support.faults.rig import freeze, kill, resume
from tests.support.faults.small_disk import small_disk
from tests.support.run_damage import change_manifest
from tests.support.synthetic_run import SyntheticRunPlan, write_run
from tests.support.tiny_model import model

ROOT = Path(__file__).parents[3]
Found = dict[str, dict[str, str]]  # The checks by name.


def doctor(*arguments: object, cwd: Path | None = None, **environment: str) -> tuple[int, Found]:
    """Runs `skylane doctor`; returns its exit code and its checks. Without `--frame` in `arguments` it sends no frame."""
    command = [sys.executable, "-m", "skylane", "doctor", "--json", *map(str, arguments)]
    if "--frame" not in arguments:
        command.append("--no-frame")
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/"),
        "PYTHONPATH": str(ROOT),
        **environment,
    }
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=variables, cwd=cwd, timeout=300)
    assert not ended.stderr, ended.stderr
    return ended.returncode, {check["name"]: check for check in json.loads(ended.stdout)}


def assert_fault(found: Found, name: str, cause: str, remedy: str, severity: str = "error") -> None:
    """Asserts that a check found a fault, with its cause and a command as the remedy."""
    check = found[name]
    assert check["severity"] == severity, found
    assert cause in check["finding"], check
    assert remedy in check["remedy"], check


@contextlib.contextmanager
def mosquitto(folder: Path, *lines: str, listener: str = "allow_anonymous true") -> Iterator[Broker]:
    """Runs a Mosquitto with these lines of configuration."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    user = ["user root"] if os.geteuid() == 0 else []
    config = folder / "mosquitto.conf"
    config.write_text("\n".join([f"listener {port} 127.0.0.1", listener, *user, *lines]) + "\n")
    with Broker.start(config=config) as broker:
        yield broker


def worker(broker: Broker, **settings: object) -> NullWorkerProcess:
    """Starts a worker with the model `instant`."""
    small = {"height": 64, "width": 96} | settings
    return NullWorkerProcess(broker.url, NullWorkerSettings(**small))  # type: ignore[arg-type]


pytestmark = pytest.mark.mosquitto


def test_a_working_set_up_has_no_error(mosquitto_broker: Broker, tmp_path: Path) -> None:
    """Every check of a healthy vehicle passes, with a real frame there and back."""
    with worker(mosquitto_broker):
        code, found = doctor("--frame", "--broker", mosquitto_broker.url, "--model", "instant", cwd=tmp_path)
    faults = {name for name, check in found.items() if check["severity"] not in ("ok", "not checked")}
    assert faults <= {"clock", "disk"}, found
    assert code == (3 if faults else 0)
    assert "answered by instant" in found["test frame"]["finding"]
    assert "64" in found["largest packet"]["finding"]


def test_an_absent_broker() -> None:
    """The most frequent fault of a first day."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    code, found = doctor("--broker", f"mqtt://127.0.0.1:{port}")
    assert code == 1
    assert_fault(found, "broker", "Connection refused", f"skylane broker --port {port}")


def test_a_host_without_an_address() -> None:
    """A typing error in the name."""
    code, found = doctor("--broker", "mqtt://no-such-host.invalid")
    assert code == 1
    assert_fault(found, "broker", "no broker at mqtt://no-such-host.invalid:1883", "export SKYLANE_BROKER=")


def test_a_frozen_broker(mosquitto_broker: Broker) -> None:
    """Fault scenario 6: it accepts connections, and says nothing."""
    freeze(mosquitto_broker.pid)
    try:
        code, found = doctor("--broker", mosquitto_broker.url)
    finally:
        resume(mosquitto_broker.pid)
    assert code == 1
    assert_fault(found, "login", "does not answer: it hangs", "skylane broker --port")


def test_a_broken_configuration(tmp_path: Path) -> None:
    """The file is named with its key; the other checks are made all the same."""
    config = tmp_path / "edge.yaml"
    config.write_text("vehicel: car-1\n")
    code, found = doctor("--config", config, "--broker", "mqtt://127.0.0.1:1")
    assert code == 1
    assert_fault(found, "configuration", "did you mean vehicle", str(config))
    assert found["broker"]["severity"] == "not checked"  # Whatever the file says, it cannot be read.
    assert found["clock"]["severity"] != "not checked"


@pytest.mark.parametrize("text", ["a: [", "- 1\n", "window: 0\n", "\0", "broker: http://x\n", "certs: /nowhere\n"])
def test_other_broken_configurations(tmp_path: Path, text: str) -> None:
    """No content of a file ends the command early."""
    config = tmp_path / "edge.yaml"
    config.write_text(text)
    code, found = doctor("--config", config, "--broker", "mqtt://127.0.0.1:1")
    assert code == 1
    assert found["configuration"]["severity"] == "error"


def test_a_missing_configuration(tmp_path: Path) -> None:
    """The path is named."""
    code, found = doctor("--config", tmp_path / "none.yaml", "--broker", "mqtt://127.0.0.1:1")
    assert code == 1
    assert_fault(found, "configuration", "cannot be read", "none.yaml")


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    """Certificates of a broker at 127.0.0.1 and of car-1."""
    authority = CertificateAuthority(tmp_path / "certs")
    authority.broker(["127.0.0.1"], 100)
    authority.node(Role.VEHICLE, "car-1", 100)
    return authority.folder


def secured(folder: Path, certs: Path) -> contextlib.AbstractContextManager[Broker]:
    """Runs a Mosquitto with certificates, also with bad ones, which `skylane broker` refuses to use."""
    files = {"cafile": "ca.crt", "certfile": "server.crt", "keyfile": "server.key", "crlfile": "crl.pem"}
    lines = [f"{key} {certs / name}" for key, name in files.items()]
    lines += ["require_certificate true", "use_identity_as_username true"]
    return mosquitto(folder, *lines, listener="allow_anonymous false")


def secured_doctor(broker: Broker, certs: Path) -> tuple[int, Found]:
    """Runs doctor as car-1."""
    url = broker.url.replace("mqtt://", "mqtts://")
    return doctor("--broker", url, "--certs", certs, "--vehicle", "car-1")


def test_a_secured_set_up(tmp_path: Path, certs: Path) -> None:
    """The days until both certificates expire are shown."""
    with secured(tmp_path, certs) as broker:
        _, found = secured_doctor(broker, certs)
    assert "valid for 99 days" in found["TLS"]["finding"]
    assert "valid for 99 days" in found["own certificate"]["finding"]
    assert found["login"]["severity"] == "ok"


def test_certificates_that_expire_soon(tmp_path: Path, certs: Path) -> None:
    """A warning, and the exit code of warnings."""
    CertificateAuthority(certs).broker(["127.0.0.1"], 5, again=True)
    with secured(tmp_path, certs) as broker:
        _, found = secured_doctor(broker, certs)
    assert_fault(found, "TLS", "expires in 4 days", "skylane broker certs", "warning")


def test_an_expired_certificate_of_the_broker(tmp_path: Path, certs: Path) -> None:
    """It is renewed at the broker."""
    old = CertificateAuthority(certs, now=datetime.now(UTC) - timedelta(days=20))
    old.broker(["127.0.0.1"], 5, again=True)
    with secured(tmp_path, certs) as broker:
        code, found = secured_doctor(broker, certs)
    assert code == 1
    assert_fault(found, "TLS", "has expired", f"skylane broker certs {certs} --broker 127.0.0.1 --again")


def test_a_wrong_authority(tmp_path: Path, certs: Path) -> None:
    """The vehicle has the ca.crt of another deployment."""
    other = CertificateAuthority(tmp_path / "other")
    with secured(tmp_path, certs) as broker:
        mine = tmp_path / "mine"
        shutil.copytree(certs, mine)
        shutil.copy(other.certificate_file, mine / "ca.crt")
        code, found = secured_doctor(broker, mine)
    assert code == 1
    assert_fault(found, "TLS", "not signed by an authority that is trusted here", "scp 127.0.0.1:")


def test_a_wrong_host_name(tmp_path: Path, certs: Path) -> None:
    """The certificate is for another name than the one in the address."""
    CertificateAuthority(certs).broker(["broker.example"], 100, again=True)
    with secured(tmp_path, certs) as broker:
        code, found = secured_doctor(broker, certs)
    assert code == 1
    assert_fault(found, "TLS", "is not for '127.0.0.1'", "--broker 127.0.0.1 --again")


def test_a_revoked_certificate(tmp_path: Path, certs: Path) -> None:
    """The vehicle still has the files."""
    mine = tmp_path / "mine"
    shutil.copytree(certs, mine)
    CertificateAuthority(certs).revoke("car-1")
    with secured(tmp_path, certs) as broker:
        code, found = secured_doctor(broker, mine)
    assert code == 1
    assert_fault(found, "login", "it was revoked", f"skylane broker certs {mine} --vehicle car-1 --again")


def test_an_expired_certificate_of_the_vehicle(tmp_path: Path, certs: Path) -> None:
    """Its own expiry is found before the broker's refusal is explained."""
    use_expired(certs, CertificateAuthority(certs))
    with secured(tmp_path, certs) as broker:
        code, found = secured_doctor(broker, certs)
    assert code == 1
    assert_fault(found, "own certificate", "expired", "--vehicle car-1 --again")


def test_a_missing_certificate(tmp_path: Path, certs: Path) -> None:
    """The folder has no certificate of this name."""
    (certs / "car-1.crt").unlink()
    with secured(tmp_path, certs) as broker:
        code, found = secured_doctor(broker, certs)
    assert code == 1
    assert_fault(found, "broker", "car-1.crt does not exist", "skylane broker certs")


def test_the_broker_s_own_certificate_at_a_vehicle(tmp_path: Path, certs: Path) -> None:
    """Not valid for a client."""
    copy_pair(certs, certs, "server", "car-1")
    with secured(tmp_path, certs) as broker:
        code, found = secured_doctor(broker, certs)
    assert code == 1
    assert_fault(found, "login", "refuses the certificate", "skylane broker certs")


FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)


@pytest.mark.parametrize("shift", ["-3y", "+3y"])
def test_a_wrong_clock(tmp_path: Path, certs: Path, shift: str) -> None:
    """No battery: certificates that are valid seem not to be so yet, or to have expired; new ones would mend nothing."""
    if FAKETIME is None:
        pytest.skip("faketime is missing")
    clock: dict[str, Any] = {"LD_PRELOAD": str(FAKETIME), "FAKETIME": shift, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    with secured(tmp_path, certs) as broker:
        url = broker.url.replace("mqtt://", "mqtts://")
        code, found = doctor("--broker", url, "--certs", certs, "--vehicle", "car-1", "--connect-timeout", 60, **clock)
    assert code == 1
    assert_fault(found, "TLS", "by the clock of this machine", "timedatectl set-ntp true")
    assert "that clock is wrong" in found["TLS"]["finding"]
    assert not any("--again" in check["remedy"] for check in found.values())


def run_remedy(remedy: str, cwd: Path) -> dict[str, str]:
    """Runs a remedy as printed, in a shell; returns the variables of Skylane that it has exported."""
    commands = Path(sys.executable).parent
    variables = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    script = f"{remedy} >/dev/null && env"
    ended = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, cwd=cwd, env=variables)
    exported = dict(line.partition("=")[::2] for line in ended.stdout.splitlines())
    return {name: value for name, value in exported.items() if name.startswith("SKYLANE_")}


def test_no_certificate_where_the_authority_is(tmp_path: Path, certs: Path) -> None:
    """The remedy uses the authority of `--tls-ca`, wherever it is run, and makes no other one."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with secured(tmp_path, certs) as broker:
        options = ("--broker", broker.url.replace("mqtt://", "mqtts://"), "--tls-ca", "../certs/ca.crt")
        code, found = doctor(*options, "--vehicle", "car-9", cwd=elsewhere)
        assert code == 1
        assert_fault(found, "login", "requires a certificate", "skylane broker certs ../certs --vehicle car-9")
        exported = run_remedy(found["login"]["remedy"], elsewhere)
        assert list(elsewhere.iterdir()) == []
        _, found = doctor(*options, "--vehicle", "car-9", cwd=elsewhere, **exported)
    assert found["login"]["severity"] == "ok"


def test_no_certificate_where_no_authority_is(tmp_path: Path, certs: Path) -> None:
    """A command of the authority would make a new one here, so it is run at its machine."""
    mine = tmp_path / "mine"
    mine.mkdir()
    shutil.copy(certs / "ca.crt", mine)
    code, found = doctor("--broker", "mqtts://127.0.0.1:1", "--certs", mine, "--vehicle", "car-9")
    assert code == 1
    assert_fault(found, "broker", "car-9.crt does not exist", "ssh HOST skylane broker certs CERTS --vehicle car-9")
    assert f"scp HOST:CERTS/car-9.crt {mine}/car-9.crt" in found["broker"]["remedy"]


def test_the_certificate_of_another_name_or_role(tmp_path: Path) -> None:
    """The broker accepts it, and its access list gives the node nothing: one error that names the certificate."""
    authority = CertificateAuthority(tmp_path)
    authority.broker(["127.0.0.1"], 100)
    authority.node(Role.VEHICLE, "car-1", 100)
    files = {"--tls-ca": "ca.crt", "--tls-cert": "car-1.crt", "--tls-key": "car-1.key"}
    with Broker.start(secured=tmp_path) as broker:
        options = [word for flag, name in files.items() for word in (flag, tmp_path / name)]
        _, vehicle = doctor("--broker", broker.url, *options, "--vehicle", "car-2")
        _, own = doctor("worker", "--broker", broker.url, *options, "--worker", "car-1", "--models", ROOT / "models")
    assert vehicle["login"]["finding"] == "accepted as vehicle car-1"
    cause = "the certificate is that of vehicle car-1, not of"
    assert_fault(vehicle, "right to send frames", f"{cause} vehicle car-2", "skylane edge play SOURCE --vehicle car-1")
    assert_fault(own, "right to announce itself", f"{cause} worker car-1", "--worker worker-car-1")
    assert [name for name, check in own.items() if check["severity"] == "error"] == ["right to announce itself"]
    run_remedy(own["right to announce itself"]["remedy"], tmp_path)
    assert (tmp_path / "worker-car-1.crt").exists()


def test_an_expired_revocation_list(tmp_path: Path, certs: Path) -> None:
    """That of the broker ends every login, though the certificate is valid; that of the folder is about to."""
    past = CertificateAuthority(certs, now=datetime.now(UTC) - timedelta(days=20))
    past.renew_crl(5)
    with secured(tmp_path, certs) as broker:
        code, found = secured_doctor(broker, certs)
    assert code == 1
    assert_fault(
        found, "login", "the broker's revocation list has expired", f"skylane broker certs {certs} --renew-list"
    )
    assert_fault(found, "revocation list", "expired", f"skylane broker certs {certs} --renew-list", "warning")
    run_remedy(found["login"]["remedy"], tmp_path)
    with secured(tmp_path, certs) as broker:
        _, found = secured_doctor(broker, certs)
    assert found["login"]["severity"] == found["revocation list"]["severity"] == "ok"


def test_a_broker_without_retained_messages(tmp_path: Path) -> None:
    """Whatever the worker does, no vehicle would find it."""
    with mosquitto(tmp_path, "retain_available false") as broker:
        code, found = doctor("--broker", broker.url)
        assert code == 1
        assert_fault(found, "login", "has no retained messages", "retain_available")
        run_remedy(found["login"]["remedy"], tmp_path)
    assert "retain_available" not in (tmp_path / "mosquitto.conf").read_text()


def test_a_worker_of_another_protocol_version(mosquitto_broker: Broker) -> None:
    """It is online, and cannot be read."""
    status = msgpack.packb({"v": 2, "state": "online"})
    topic = WORKER_STATUS.of(worker="newer")
    with BrokerOptions(mosquitto_broker.url).open("newer", None) as other:
        other.publish(topic, status, qos=1, retained=True)
    try:
        code, found = doctor("--broker", mosquitto_broker.url)
    finally:
        with BrokerOptions(mosquitto_broker.url).open("newer", None) as other:
            other.publish(topic, b"", qos=1, retained=True)
    assert code == 1
    assert_fault(found, "workers", "newer: field 'v': version 2 is not supported", "pip install --upgrade")


def test_the_port_of_another_worker(mosquitto_broker: Broker) -> None:
    """Its process is a worker too, but `cloud serve` would end, as the port is in use."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        code = "import sys, time; time.sleep(600)"
        words = ["cloud", "serve", "--worker", "w-fast"]
        with subprocess.Popen([sys.executable, "-c", code, *words], pass_fds=[holder.fileno()]) as process:
            holder.close()  # The other process alone has the port.
            try:
                options = ("--http", address, "--broker", mosquitto_broker.url, "--models", ROOT / "models")
                _, other = doctor("worker", "--worker", "w-slow", *options)
                _, same = doctor("worker", "--worker", "w-fast", *options)
            finally:
                process.kill()
    assert_fault(other, "ports", "worker w-fast (process", "ss -ltnp")
    assert same["ports"]["severity"] == "ok"


def test_tls_on_one_side_only(tmp_path: Path, certs: Path, mosquitto_broker: Broker) -> None:
    """mqtt:// to a port with TLS, and mqtts:// to one without."""
    with secured(tmp_path, certs) as broker:
        code, found = doctor("--broker", broker.url.replace("mqtts", "mqtt"))
        assert code == 1
        assert_fault(found, "login", "speaks TLS on that port", "mqtts://")
    code, found = doctor("--broker", mosquitto_broker.url.replace("mqtt://", "mqtts://"))
    assert code == 1
    assert_fault(found, "TLS", "", "mqtt://")


def test_a_wrong_password(tmp_path: Path) -> None:
    """The user exists, and has another password."""
    passwords = tmp_path / "passwords"
    subprocess.run(["mosquitto_passwd", "-b", "-c", str(passwords), "car-1", "s3cret"], check=True)
    lines = [f"password_file {passwords}"]
    with mosquitto(tmp_path, *lines, listener="allow_anonymous false") as broker:
        url = broker.url.replace("mqtt://", "mqtt://car-1@")
        code, found = doctor("--broker", url, SKYLANE_BROKER_PASSWORD="wrong")
        assert code == 1
        assert_fault(found, "login", "refuses", "export SKYLANE_BROKER_PASSWORD=")
        code, found = doctor("--broker", broker.url)
        assert_fault(found, "login", "refuses", "export SKYLANE_BROKER=mqtt://USER@")
        _, found = doctor("--broker", url, SKYLANE_BROKER_PASSWORD="s3cret")
        assert found["login"]["severity"] == "ok"
    text = json.dumps(found)
    assert "s3cret" not in text


VEHICLE_TOPICS = ("frames/#", "retries/#", "probes/#", "status/#", "masks/#", "echoes/#", "load/#")


@contextlib.contextmanager
def broker_that_forbids(folder: Path, topic: str) -> Iterator[Broker]:
    """Runs a broker with an access list for vehicles and workers that lacks one topic for the user car-1."""
    acl = folder / "acl"
    everything = [f"topic readwrite skylane/v1/{each}" for each in VEHICLE_TOPICS]
    car = [f"topic readwrite skylane/v1/{each}" for each in VEHICLE_TOPICS if each != topic]
    acl.write_text("\n".join([*everything, "user car-1", *car]) + "\n")
    with mosquitto(folder, f"acl_file {acl}") as broker:
        yield broker


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("masks/#", "right to read results"),
        ("frames/#", "right to send frames"),
        ("echoes/#", "right to read clock probes"),
    ],
)
def test_an_access_list_that_forbids(tmp_path: Path, topic: str, name: str) -> None:
    """A subscription is granted all the same: only canary messages show what is withheld."""
    with broker_that_forbids(tmp_path, topic) as broker, worker(broker):
        url = broker.url.replace("mqtt://", "mqtt://car-1@")
        code, found = doctor("--broker", url, "--model", "instant", "--vehicle", "car-1")
    assert code == 1
    assert_fault(found, name, "access list forbids", "skylane broker --secured")


def test_a_worker_that_may_not_announce_itself(tmp_path: Path) -> None:
    """Vehicles would never find it."""
    with broker_that_forbids(tmp_path, "status/#") as broker:
        code, found = doctor("worker", "--broker", broker.url.replace("mqtt://", "mqtt://car-1@"))
    assert code == 1
    assert_fault(found, "right to announce itself", "access list forbids", "skylane broker --secured")


def test_the_shipped_access_list_forbids_nothing(tmp_path: Path) -> None:
    """A false alarm on the secured broker that the project ships would teach people to ignore doctor."""
    authority = CertificateAuthority(tmp_path)
    authority.broker(["127.0.0.1"], 100)
    authority.node(Role.VEHICLE, "car-1", 100)
    authority.node(Role.WORKER, "instant", 100)
    with Broker.start(secured=tmp_path) as broker, worker(broker, certs=tmp_path):
        options = ("--broker", broker.url, "--certs", tmp_path)
        _, vehicle = doctor(*options, "--frame", "--vehicle", "car-1", "--model", "instant")
        _, own = doctor("worker", *options, "--worker", "instant", "--models", ROOT / "models")
    for found in (vehicle, own):
        faults = {name for name, check in found.items() if check["severity"] not in ("ok", "not checked")}
        assert faults <= {"clock", "disk"}, found
    assert "answered by instant" in vehicle["test frame"]["finding"]
    assert own["right to announce itself"]["severity"] == "ok"


def test_no_worker(mosquitto_broker: Broker) -> None:
    """Fault scenario 4, and every first day."""
    code, found = doctor("--broker", mosquitto_broker.url)
    assert code == 1
    assert_fault(found, "workers", "no worker is online", f"skylane cloud serve --broker {mosquitto_broker.url}")


def test_a_killed_worker(mosquitto_broker: Broker) -> None:
    """Fault scenarios 1 and 4: its last will is what remains."""
    with worker(mosquitto_broker) as running:
        kill(running.pid)
        code, found = doctor("--broker", mosquitto_broker.url, "--model", "instant")
    assert code == 1
    assert_fault(found, "workers", "no worker is online", "skylane cloud serve")


def test_a_worker_with_another_model(mosquitto_broker: Broker) -> None:
    """The models that are served are named."""
    with worker(mosquitto_broker, model="other"):
        code, found = doctor("--broker", mosquitto_broker.url, "--model", "instant")
    assert code == 1
    assert_fault(found, "workers", "served: other", "--model other")


def test_a_frozen_worker(mosquitto_broker: Broker) -> None:
    """Fault scenarios 2 and 28: its status says online."""
    with worker(mosquitto_broker) as running:
        freeze(running.pid)
        try:
            code, found = doctor("--broker", mosquitto_broker.url, "--model", "instant")
        finally:
            resume(running.pid)
    assert code == 1
    assert_fault(found, "silent workers", "instant", "skylane cloud serve --worker instant")


def test_a_worker_whose_model_fails(mosquitto_broker: Broker) -> None:
    """Fault scenario 18: only a test frame shows it, as the worker announces the model all the same."""

    def fail() -> None:
        raise RuntimeError("broken weights")

    def bus(_: CloudNode) -> Bus:
        return BrokerOptions(mosquitto_broker.url).open("worker", None)

    with serving(bus, model(fail)):
        code, found = doctor("--frame", "--broker", mosquitto_broker.url, "--model", "tiny")
    assert code == 1
    assert_fault(found, "test frame", "internal error in inference", "skylane cloud serve --model tiny")


def test_a_worker_with_a_wrong_clock(mosquitto_broker: Broker) -> None:
    """Fault scenario 20: latencies are right, logs are not comparable."""
    settings = NullWorkerSettings(height=64, width=96)
    with NullWorkerProcess(mosquitto_broker.url, settings, clock_offset_s=3600):
        _, found = doctor("--broker", mosquitto_broker.url, "--model", "instant")
    assert_fault(found, "worker's clock", "+3600 s", "timedatectl", "warning")


def test_a_name_that_is_taken(mosquitto_broker: Broker) -> None:
    """Fault scenario 17: a second vehicle of that name would end."""
    with worker(mosquitto_broker), BrokerOptions(mosquitto_broker.url).open("car-1", None) as other:
        status = pack_status(NodeStatus(NodeState.ONLINE, "abc"))
        acknowledged = threading.Event()
        topic = VEHICLE_STATUS.of(vehicle="car-1")
        other.publish(topic, status, qos=1, retained=True, acknowledged=lambda _: acknowledged.set())
        assert acknowledged.wait(60)
        _, found = doctor("--broker", mosquitto_broker.url, "--model", "instant", "--vehicle", "car-1")
    assert_fault(found, "vehicle name", "car-1 is online", "--vehicle OTHER", "warning")


def test_workers_without_a_broker(mosquitto_broker: Broker) -> None:
    """A vehicle that calls its workers by gRPC or HTTP has no broker to check; another port has no worker."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = ("--transport", "oip-rest", "--worker-address", address, "--model", "instant")
    with worker(mosquitto_broker, http=address):
        _, found = doctor(*options, "--frame")
        assert found[f"worker {address}"]["severity"] == "ok"
        assert "answered" in found["test frame"]["finding"]
    code, found = doctor(*options, "--frame")
    assert code == 1
    assert_fault(found, f"worker {address}", "", f"skylane cloud serve --http {address} --model instant")


def test_a_run_that_was_killed(tmp_path: Path) -> None:
    """Fault scenario 7 leaves a log without its last rows."""
    folder = write_run(tmp_path / "runs" / "killed", SyntheticRunPlan())
    change_manifest(folder, state="running")
    _, found = doctor("--broker", "mqtt://127.0.0.1:1", cwd=tmp_path)
    assert_fault(found, "runs", "1 killed runs", "skylane report runs/killed --repair", "warning")


def test_a_broker_without_mqtt_5(embedded_url: str) -> None:
    """It works with one worker; messages have no reasons."""
    _, found = doctor("--broker", embedded_url)
    assert_fault(found, "MQTT version", "3.1.1 only", "skylane broker --kind mosquitto", "warning")


@pytest.mark.parametrize("limit", ["max_packet_size 100000", "message_size_limit 100000"])
def test_a_small_largest_packet(tmp_path: Path, limit: str) -> None:
    """Fault scenario 14: one limit is announced by the broker, the other only found by a message."""
    with mosquitto(tmp_path, limit) as broker, worker(broker, height=200, width=300):
        _, found = doctor("--broker", broker.url, "--model", "instant")
    assert_fault(found, "largest packet", "180000", "message_size_limit", "warning")


def test_a_port_that_is_taken() -> None:
    """The process that holds it is named."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        code, found = doctor("worker", "--http", address, "--broker", "mqtt://127.0.0.1:1")
    assert code == 1
    assert_fault(found, "ports", f"(process {os.getpid()})", "ss -ltnp")


def test_a_port_of_the_vehicle_that_is_taken(tmp_path: Path) -> None:
    """Metrics are served by vehicles, too; and the view's certificate may be none."""
    (tmp_path / "junk.pem").write_text("junk")
    config = tmp_path / "edge.yaml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        keys = {"metrics": address, "view": "foxglove", "view_tls_cert": "junk.pem", "view_tls_key": "junk.pem"}
        config.write_text("".join(f"{key}: {value}\n" for key, value in keys.items()))
        code, found = doctor("--config", config, cwd=tmp_path)
    assert code == 1
    assert_fault(found, "ports", f"{address}: Address already in use", "--metrics 127.0.0.1:OTHER_PORT")
    assert_fault(found, "view", "junk.pem cannot be used", "--view-tls-cert FILE")
    assert {"libraries [metrics]", "libraries [view]"} <= found.keys()


def test_an_authority_that_is_none(tmp_path: Path) -> None:
    """Another certificate of the vehicle would mend nothing."""
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    with socket.create_server(("127.0.0.1", 0)) as server:
        code, found = doctor("--broker", f"mqtts://127.0.0.1:{server.getsockname()[1]}", "--tls-ca", junk)
    assert code == 1
    assert_fault(found, "TLS", "junk.pem holds no PEM certificate", f"ca.crt {junk}")


def test_workers_that_hang_are_checked_side_by_side() -> None:
    """One after the other, they would take longer than the command has."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(4)]
        addresses = [f"127.0.0.1:{server.getsockname()[1]}" for server in servers]
        options = [word for address in addresses for word in ("--worker-address", address)]
        code, found = doctor("--transport", "grpc", *options)
    assert code == 1
    for address in addresses:
        assert_fault(found, f"worker {address}", "no worker is online: start", f"skylane cloud serve --grpc {address}")


def test_a_wrong_hash_of_a_model(tmp_path: Path) -> None:
    """A copy that was cut off."""
    shutil.copytree(ROOT / "models" / "road-small", tmp_path / "road-small")
    damaged = next(path for path in (tmp_path / "road-small").iterdir() if path.suffix == ".pb")
    damaged.write_bytes(damaged.read_bytes()[:-1])
    code, found = doctor("worker", "--models", tmp_path, "--broker", "mqtt://127.0.0.1:1")
    assert code == 1
    assert_fault(found, "model road-small", "its manifest", "skylane model build road-small")


def test_a_repository_that_does_not_exist(tmp_path: Path) -> None:
    """The path is named."""
    code, found = doctor("worker", "--models", tmp_path / "none", "--broker", "mqtt://127.0.0.1:1")
    assert code == 1
    assert "none" in found["models"]["finding"]


def test_a_model_that_does_not_exist() -> None:
    """A typing error: the most similar model is in the command."""
    options = ("--models", ROOT / "models", "--model", "road-smal", "--broker", "mqtt://127.0.0.1:1")
    code, found = doctor("worker", *options)
    assert code == 1
    assert_fault(found, "model road-smal", "did you mean road-small", "skylane cloud serve --model road-small")


def test_a_password_file_that_cannot_be_read(tmp_path: Path) -> None:
    """The reason is in the cause, and the remedy is a command."""
    code, found = doctor("--broker", "mqtt://127.0.0.1:1", SKYLANE_BROKER_PASSWORD_FILE=str(tmp_path / "none"))
    assert code == 1
    assert_fault(found, "broker", "No such file or directory", "export SKYLANE_BROKER_PASSWORD=")


def test_a_folder_without_the_authority(certs: Path) -> None:
    """It is copied from the broker: another authority would not be trusted there."""
    (certs / "ca.crt").unlink()
    code, found = doctor("--broker", "mqtts://127.0.0.1:1", "--certs", certs, "--vehicle", "car-1")
    assert code == 1
    assert_fault(found, "broker", "ca.crt does not exist", "scp 127.0.0.1:")


def test_a_full_disk(tmp_path: Path) -> None:
    """Fault scenario 19."""
    with small_disk(tmp_path / "small", 300_000):
        code, found = doctor("--out", tmp_path / "small" / "run", "--broker", "mqtt://127.0.0.1:1")
    assert code == 1
    assert_fault(found, "disk", "the disk is full", "--out OTHER_FOLDER")


def test_a_missing_extra(tmp_path: Path) -> None:
    """An installation without PyAV and rosbags, made of links to the libraries of this one."""
    site = Path(str(distribution("click").locate_file("")))
    for entry in site.iterdir():
        if not entry.name.lower().startswith(("av", "rosbags", "__editable__")) and entry.suffix != ".pth":
            (tmp_path / entry.name).symlink_to(entry)
    command = [
        sys.executable,
        "-S",
        "-m",
        "skylane",
        "doctor",
        "--no-frame",
        "--json",
        "--broker",
        "mqtt://127.0.0.1:1",
    ]
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    assert ended.stdout, (ended.stderr, ended.returncode)
    found = {check["name"]: check for check in json.loads(ended.stdout)}
    assert_fault(found, "libraries [edge]", "av, rosbags of the extra [edge] not installed", "skylane[edge]")


_CLOCK = "int adjtimex(void *unused) { return STATE; }"


@pytest.mark.parametrize(("state", "severity"), [(5, "warning"), (0, "ok")])
def test_a_clock_that_nothing_synchronises(tmp_path: Path, state: int, severity: str) -> None:
    """The kernel's answer is replaced by a library, as no test may change the clock of the machine."""
    if shutil.which("gcc") is None:
        pytest.skip("no C compiler")
    source, library = tmp_path / "clock.c", tmp_path / "clock.so"
    source.write_text(_CLOCK.replace("STATE", str(state)))
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    _, found = doctor("--broker", "mqtt://127.0.0.1:1", LD_PRELOAD=str(library))
    assert found["clock"]["severity"] == severity
    if severity == "warning":
        assert_fault(found, "clock", "not synchronised", "timedatectl set-ntp true", "warning")


@pytest.mark.parametrize("role", ["vehicle", "worker"])
def test_the_table(role: str, mosquitto_broker: Broker) -> None:
    """For people: every fault is repeated below the table with its remedy alone on a line, to be copied."""
    command = [sys.executable, "-m", "skylane", "doctor", role, "--no-frame", "--broker", mosquitto_broker.url]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert ended.returncode in (0, 1, 3)
    assert "skylane doctor" in ended.stdout
    assert f"\n    skylane cloud serve --broker {mosquitto_broker.url}\n" in ended.stdout
