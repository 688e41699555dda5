"""Wrong set-ups, made for real: doctor names the cause and the command that mends each, and its exit code tells how bad it is."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import msgpack
import pytest
from click.testing import CliRunner

from cloud.node import CloudNode
from ops.broker.broker import Broker
from ops.broker.certificate_authority import CertificateAuthority, Role
from ops.processes.null_worker import NullWorkerProcess, NullWorkerSettings, null_model
from shared.messages.node_status import NodeState, NodeStatus, pack_status
from shared.messages.topics import VEHICLE_STATUS, WORKER_STATUS
from shared.mqtt.broker_options import BrokerOptions
from shared.mqtt.bus import Bus
from skylane import cli
from tests.conftest import need_mosquitto
from tests.pipeline.rig import serving
from tests.support.bad_certificates import copy_pair, use_expired
from tests.support.faults.rig import freeze, resume
from tests.support.faults.small_disk import small_disk
from tests.support.mqtt_bus import free_port, mosquitto_with
from tests.support.run_damage import change_manifest
from tests.support.synthetic_run import SyntheticRunPlan, write_run
from tests.support.tiny_model import model

ROOT = Path(__file__).parents[3]
Found = dict[str, dict[str, str]]  # The checks by name.
Ended = tuple[int, Found]  # An exit code and the checks.

pytestmark = pytest.mark.mosquitto


def run_doctor(*arguments: object, cwd: Path = ROOT, **environment: str) -> tuple[int, str]:
    """Runs `skylane doctor` in this process; returns its exit code and what it printed."""
    unset: dict[str, str | None] = {name: None for name in os.environ if name.startswith("SKYLANE_")}
    with contextlib.chdir(cwd):
        ended = CliRunner(env=unset | environment).invoke(
            cli.skylane, ["doctor", *map(str, arguments)], catch_exceptions=False
        )
    assert not ended.stderr
    return ended.exit_code, ended.stdout


def doctor(*arguments: object, **options: Any) -> Ended:
    """Runs doctor; without `--frame` in `arguments` it sends no frame. The options are those of `run_doctor`."""
    frame = () if "--frame" in arguments else ("--no-frame",)
    code, printed = run_doctor("--json", *arguments, *frame, **options)
    return code, by_name(printed)


def doctor_process(*arguments: object, flags: tuple[str, ...] = (), **environment: str) -> Ended:
    """Runs doctor in a process of its own, where the test replaces a library. `flags`: those of Python."""
    command = [sys.executable, *flags, "-m", "skylane", "doctor", "--json", "--no-frame", *map(str, arguments)]
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environment}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=variables, timeout=300)
    assert ended.stdout, ended.stderr
    return ended.returncode, by_name(ended.stdout)


def by_name(printed: str) -> Found:
    """Returns the checks that doctor printed as JSON."""
    return {check["name"]: check for check in json.loads(printed)}


def assert_fault(ended: Ended, name: str, cause: str, remedy: str, severity: str = "error") -> Found:
    """Asserts that a check found a fault, with its cause and a command as the remedy; returns all checks."""
    code, found = ended
    check = found[name]
    assert check["severity"] == severity, found
    assert cause in check["finding"], check
    assert remedy in check["remedy"], check
    assert code == 1 or severity == "warning"
    return found


def assert_healthy(ended: Ended) -> None:
    """Asserts that only the clock and the disk, which are this machine's own, may have a fault."""
    code, found = ended
    faults = {name for name, check in found.items() if check["severity"] not in ("ok", "not checked")}
    assert faults <= {"clock", "disk"}, found
    assert code == (3 if faults else 0)


@contextlib.contextmanager
def worker(broker: Broker, *, certs: Path | None = None, http: str | None = None, **settings: int) -> Iterator[None]:
    """Runs a worker with the model `instant` in this process."""

    def bus(node: CloudNode) -> Bus:
        options = BrokerOptions(broker.url, certs=certs)
        return options.open("worker", None, name="instant", on_connected=node.announce, on_fault=node.threads.fault)

    size = {"height": 64, "width": 96} | settings
    with serving(bus, null_model(NullWorkerSettings(**size)), http=http):  # type: ignore[arg-type]
        yield


@pytest.fixture(scope="module")
def gateway() -> str:
    """The address of the gateway of the worker below."""
    return f"127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def served(gateway: str) -> Iterator[str]:
    """A broker with a worker that serves `instant`; yields its URL."""
    need_mosquitto()
    with Broker.start(kind="mosquitto") as broker, worker(broker, http=gateway):
        yield broker.url


def test_a_working_set_up_has_no_error(served: str, tmp_path: Path) -> None:
    """Every check of a healthy vehicle passes, with a real frame there and back."""
    code, found = doctor("--frame", "--broker", served, "--model", "instant", cwd=tmp_path)
    assert_healthy((code, found))
    assert "answered by worker-" in found["test frame"]["finding"]
    assert "64" in found["largest packet"]["finding"]


def test_a_broker_that_cannot_be_reached() -> None:
    """The most frequent fault of a first day, and a typing error in the name."""
    port = free_port()
    refused = doctor("--broker", f"mqtt://127.0.0.1:{port}")
    assert_fault(refused, "broker", "Connection refused", f"skylane broker --port {port}")
    unknown = doctor("--broker", "mqtt://no-such-host.invalid")
    assert_fault(unknown, "broker", "no broker at mqtt://no-such-host.invalid:1883", "export SKYLANE_BROKER=")


def test_a_frozen_broker(mosquitto_broker: Broker) -> None:
    """Fault scenario 6: it accepts connections, and says nothing."""
    freeze(mosquitto_broker.pid)
    try:
        ended = doctor("--broker", mosquitto_broker.url)
    finally:
        resume(mosquitto_broker.pid)
    assert_fault(ended, "login", "does not answer: it hangs", "skylane broker --port")


def test_a_broken_configuration(tmp_path: Path) -> None:
    """The file is named with its key; whatever it contains, the other checks are made all the same."""
    config = tmp_path / "edge.yaml"
    options = ("--config", config, "--broker", "mqtt://127.0.0.1:1")
    assert_fault(doctor(*options), "configuration", "cannot be read", "edge.yaml")
    config.write_text("vehicel: car-1\n")
    found = assert_fault(doctor(*options), "configuration", "did you mean vehicle", str(config))
    assert found["broker"]["severity"] == "not checked"  # Whatever the file says, it cannot be read.
    assert found["clock"]["severity"] != "not checked"
    for text in ("a: [", "- 1\n", "window: 0\n", "\0", "broker: http://x\n", "certs: /nowhere\n"):
        config.write_text(text)
        assert_fault(doctor(*options), "configuration", "", "edge.yaml")


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
    return mosquitto_with(
        folder, "allow_anonymous false", *lines, "require_certificate true", "use_identity_as_username true"
    )


def secured_doctor(broker: Broker, certs: Path) -> Ended:
    """Runs doctor as car-1."""
    return doctor("--broker", broker.url, "--certs", certs, "--vehicle", "car-1")


def test_a_secured_set_up(tmp_path: Path, certs: Path) -> None:
    """The days until both certificates expire are shown."""
    with secured(tmp_path, certs) as broker:
        _, found = secured_doctor(broker, certs)
    assert "valid for 99 days" in found["TLS"]["finding"]
    assert "valid for 99 days" in found["own certificate"]["finding"]
    assert found["login"]["severity"] == "ok"


def days_ago(folder: Path, days: int) -> CertificateAuthority:
    """Returns the authority of a folder with an earlier clock."""
    return CertificateAuthority(folder, now=datetime.now(UTC) - timedelta(days=days))


@pytest.mark.parametrize(
    ("prepare", "name", "cause", "remedy"),
    [
        (
            lambda certs, _: days_ago(certs, 20).broker(["127.0.0.1"], 5, again=True),
            "TLS",
            "has expired",
            "skylane broker certs {mine} --broker 127.0.0.1 --again",
        ),
        (
            lambda certs, mine: shutil.copy(CertificateAuthority(certs / "other").certificate_file, mine / "ca.crt"),
            "TLS",
            "not signed by an authority that is trusted here",
            "scp 127.0.0.1:",
        ),
        (
            lambda certs, _: CertificateAuthority(certs).broker(["broker.example"], 100, again=True),
            "TLS",
            "is not for '127.0.0.1'",
            "--broker 127.0.0.1 --again",
        ),
        (
            lambda certs, _: CertificateAuthority(certs).revoke("car-1"),
            "login",
            "it was revoked",
            "skylane broker certs {mine} --vehicle car-1 --again",
        ),
        (
            lambda certs, mine: use_expired(mine, CertificateAuthority(certs)),
            "own certificate",
            "expired",
            "--vehicle car-1 --again",
        ),
        (
            lambda _, mine: (mine / "car-1.crt").unlink(),
            "broker",
            "car-1.crt does not exist",
            "skylane broker certs",
        ),
        (
            lambda certs, mine: copy_pair(certs, mine, "server", "car-1"),
            "login",
            "refuses the certificate",
            "skylane broker certs",
        ),
        (lambda _, mine: (mine / "ca.crt").unlink(), "broker", "ca.crt does not exist", "scp 127.0.0.1:"),
    ],
    ids=[
        "expired broker", "wrong authority", "wrong host", "revoked", "expired", "missing", "server's", "no authority"
    ],
)  # fmt: skip
def test_a_bad_certificate(
    tmp_path: Path, certs: Path, *, prepare: Callable[[Path, Path], object], name: str, cause: str, remedy: str
) -> None:
    """The remedy is run where the file comes from: at the broker, or with the authority of the vehicle's folder."""
    mine = tmp_path / "mine"
    shutil.copytree(certs, mine)
    prepare(certs, mine)
    with secured(tmp_path, certs) as broker:
        assert_fault(secured_doctor(broker, mine), name, cause, remedy.format(mine=mine))


def test_certificates_that_expire_soon(tmp_path: Path, certs: Path) -> None:
    """A warning."""
    CertificateAuthority(certs).broker(["127.0.0.1"], 5, again=True)
    with secured(tmp_path, certs) as broker:
        ended = secured_doctor(broker, certs)
    assert_fault(ended, "TLS", "expires in 4 days", "skylane broker certs", "warning")


FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)


@pytest.mark.parametrize("shift", ["-3y", "+3y"])
def test_a_wrong_clock(tmp_path: Path, certs: Path, shift: str) -> None:
    """No battery: certificates that are valid seem not to be so yet, or to have expired; new ones would mend nothing."""
    if FAKETIME is None:
        pytest.skip("faketime is missing")
    clock: dict[str, Any] = {"LD_PRELOAD": str(FAKETIME), "FAKETIME": shift, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    with secured(tmp_path, certs) as broker:
        options = ("--broker", broker.url, "--certs", certs, "--vehicle", "car-1", "--connect-timeout", 60)
        ended = doctor_process(*options, **clock)
    found = assert_fault(ended, "TLS", "by the clock of this machine", "timedatectl set-ntp true")
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
        options = ("--broker", broker.url, "--tls-ca", "../certs/ca.crt", "--vehicle", "car-9")
        remedy = "skylane broker certs ../certs --vehicle car-9"
        found = assert_fault(doctor(*options, cwd=elsewhere), "login", "requires a certificate", remedy)
        exported = run_remedy(found["login"]["remedy"], elsewhere)
        assert list(elsewhere.iterdir()) == []
        _, found = doctor(*options, cwd=elsewhere, **exported)
    assert found["login"]["severity"] == "ok"


def test_no_certificate_where_no_authority_is(tmp_path: Path, certs: Path) -> None:
    """A command of the authority would make a new one here, so it is run at its machine."""
    mine = tmp_path / "mine"
    mine.mkdir()
    shutil.copy(certs / "ca.crt", mine)
    ended = doctor("--broker", "mqtts://127.0.0.1:1", "--certs", mine, "--vehicle", "car-9")
    remedy = "ssh HOST skylane broker certs CERTS --vehicle car-9"
    found = assert_fault(ended, "broker", "car-9.crt does not exist", remedy)
    assert f"scp HOST:CERTS/car-9.crt {mine}/car-9.crt" in found["broker"]["remedy"]


def test_the_certificate_of_another_name_or_role(tmp_path: Path, certs: Path) -> None:
    """The broker accepts it, and its access list gives the node nothing: one error that names the certificate."""
    files = {"--tls-ca": "ca.crt", "--tls-cert": "car-1.crt", "--tls-key": "car-1.key"}
    with Broker.start(secured=certs) as broker:
        options = ["--broker", broker.url, *(word for flag, name in files.items() for word in (flag, certs / name))]
        vehicle = doctor(*options, "--vehicle", "car-2")
        own = doctor("worker", *options, "--worker", "car-1", "--models", ROOT / "models")
    cause = "the certificate is that of vehicle car-1, not of"
    remedy = "skylane edge play SOURCE --vehicle car-1"
    found = assert_fault(vehicle, "right to send frames", f"{cause} vehicle car-2", remedy)
    assert found["login"]["finding"] == "accepted as vehicle car-1"
    found = assert_fault(own, "right to announce itself", f"{cause} worker car-1", "--worker worker-car-1")
    assert [name for name, check in found.items() if check["severity"] == "error"] == ["right to announce itself"]
    run_remedy(found["right to announce itself"]["remedy"], tmp_path)
    assert (certs / "worker-car-1.crt").exists()


def test_an_expired_revocation_list(tmp_path: Path, certs: Path) -> None:
    """That of the broker ends every login, though the certificate is valid; that of the folder is about to."""
    days_ago(certs, 20).renew_crl(5)
    with secured(tmp_path, certs) as broker:
        ended = secured_doctor(broker, certs)
    remedy = f"skylane broker certs {certs} --renew-list"
    found = assert_fault(ended, "login", "the broker's revocation list has expired", remedy)
    assert_fault(ended, "revocation list", "expired", remedy, "warning")
    run_remedy(found["login"]["remedy"], tmp_path)
    with secured(tmp_path, certs) as broker:
        _, found = secured_doctor(broker, certs)
    assert found["login"]["severity"] == found["revocation list"]["severity"] == "ok"


def test_tls_on_one_side_only(tmp_path: Path, certs: Path, served: str) -> None:
    """mqtt:// to a port with TLS, and mqtts:// to one without."""
    with secured(tmp_path, certs) as broker:
        ended = doctor("--broker", broker.url.replace("mqtts", "mqtt"))
    assert_fault(ended, "login", "speaks TLS on that port", "mqtts://")
    assert_fault(doctor("--broker", served.replace("mqtt://", "mqtts://")), "TLS", "", "mqtt://")


def test_an_authority_that_is_none(tmp_path: Path) -> None:
    """Another certificate of the vehicle would mend nothing."""
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    with socket.create_server(("127.0.0.1", 0)) as server:
        ended = doctor("--broker", f"mqtts://127.0.0.1:{server.getsockname()[1]}", "--tls-ca", junk)
    assert_fault(ended, "TLS", "junk.pem holds no PEM certificate", f"ca.crt {junk}")


def test_a_wrong_password(tmp_path: Path) -> None:
    """The user exists, and has another password."""
    passwords = tmp_path / "passwords"
    subprocess.run(["mosquitto_passwd", "-b", "-c", str(passwords), "car-1", "s3cret"], check=True)
    with mosquitto_with(tmp_path, "allow_anonymous false", f"password_file {passwords}") as broker:
        url = broker.url.replace("mqtt://", "mqtt://car-1@")
        wrong = doctor("--broker", url, SKYLANE_BROKER_PASSWORD="wrong")
        anonymous = doctor("--broker", broker.url)
        _, found = doctor("--broker", url, SKYLANE_BROKER_PASSWORD="s3cret")
    assert_fault(wrong, "login", "refuses", "export SKYLANE_BROKER_PASSWORD=")
    assert_fault(anonymous, "login", "refuses", "export SKYLANE_BROKER=mqtt://USER@")
    assert found["login"]["severity"] == "ok"
    assert "s3cret" not in json.dumps(found)


def test_a_password_file_that_cannot_be_read(tmp_path: Path) -> None:
    """The reason is in the cause, and the remedy is a command."""
    ended = doctor("--broker", "mqtt://127.0.0.1:1", SKYLANE_BROKER_PASSWORD_FILE=str(tmp_path / "none"))
    assert_fault(ended, "broker", "No such file or directory", "export SKYLANE_BROKER_PASSWORD=")


def test_an_access_list_that_forbids(tmp_path: Path) -> None:
    """A subscription is granted all the same: only canary messages show what is withheld. Each user lacks one topic."""
    topics = ("frames/#", "retries/#", "probes/#", "status/#", "masks/#", "echoes/#", "load/#")
    lines = [f"topic readwrite skylane/v1/{topic}" for topic in topics]
    for missing in topics:
        lines += [f"user without-{missing[:-2]}"]
        lines += [f"topic readwrite skylane/v1/{topic}" for topic in topics if topic != missing]
    (tmp_path / "acl").write_text("\n".join(lines) + "\n")
    with mosquitto_with(tmp_path, "allow_anonymous true", f"acl_file {tmp_path / 'acl'}") as broker:
        url = broker.url.replace("mqtt://", "mqtt://without-{}@").format
        alone = doctor("worker", "--broker", url("status"))
        with worker(broker):
            checked = [
                (doctor("--broker", url(topic), "--model", "instant", "--vehicle", "car-1"), f"right to {right}")
                for topic, right in (
                    ("masks", "read results"),
                    ("frames", "send frames"),
                    ("echoes", "read clock probes"),
                )
            ]
    for ended, right in [*checked, (alone, "right to announce itself")]:
        assert_fault(ended, right, "access list forbids", "skylane broker --secured")


def test_the_shipped_access_list_forbids_nothing(certs: Path) -> None:
    """A false alarm on the secured broker that the project ships would teach people to ignore doctor."""
    CertificateAuthority(certs).node(Role.WORKER, "instant", 100)
    with Broker.start(secured=certs) as broker, worker(broker, certs=certs):
        options = ("--broker", broker.url, "--certs", certs)
        vehicle = doctor(*options, "--frame", "--vehicle", "car-1", "--model", "instant")
        own = doctor("worker", *options, "--worker", "instant", "--models", ROOT / "models")
    for ended in (vehicle, own):
        assert_healthy(ended)
    assert "answered by worker-" in vehicle[1]["test frame"]["finding"]
    assert own[1]["right to announce itself"]["severity"] == "ok"


@pytest.mark.parametrize("limit", ["max_packet_size 100000", "message_size_limit 100000"])
def test_a_small_largest_packet(tmp_path: Path, limit: str) -> None:
    """Fault scenario 14: one limit is announced by the broker, the other only found by a message."""
    with mosquitto_with(tmp_path, "allow_anonymous true", limit) as broker, worker(broker, height=200, width=300):
        ended = doctor("--broker", broker.url, "--model", "instant")
    assert_fault(ended, "largest packet", "180000", "message_size_limit", "warning")


def test_a_broker_without_retained_messages(tmp_path: Path) -> None:
    """Whatever the worker does, no vehicle would find it."""
    with mosquitto_with(tmp_path, "allow_anonymous true", "retain_available false") as broker:
        ended = doctor("--broker", broker.url)
        found = assert_fault(ended, "login", "has no retained messages", "retain_available")
        run_remedy(found["login"]["remedy"], tmp_path)
    assert "retain_available" not in (tmp_path / "mosquitto.conf").read_text()


def test_a_broker_without_mqtt_5(embedded_url: str) -> None:
    """It works with one worker; messages have no reasons."""
    ended = doctor("--broker", embedded_url)
    assert_fault(ended, "MQTT version", "3.1.1 only", "skylane broker --kind mosquitto", "warning")


def publish(url: str, topic: str, status: bytes) -> None:
    """Publishes the status of a node and waits until the broker has it."""
    acknowledged = threading.Event()
    with BrokerOptions(url).open("other", None) as bus:
        bus.publish(topic, status, qos=1, retained=True, acknowledged=lambda _: acknowledged.set())
        assert acknowledged.wait(60)


def test_no_worker_is_online(mosquitto_broker: Broker) -> None:
    """Every first day; the last will of a killed worker; and one whose version cannot be read."""
    url, topic = mosquitto_broker.url, WORKER_STATUS.of(worker="newer")
    for status in (None, pack_status(NodeStatus(NodeState.OFFLINE, "abc"))):
        if status is not None:
            publish(url, topic, status)
        assert_fault(doctor("--broker", url), "workers", "no worker is online", f"skylane cloud serve --broker {url}")
    publish(url, topic, msgpack.packb({"v": 2, "state": "online"}))
    ended = doctor("--broker", url)
    assert_fault(ended, "workers", "newer: field 'v': version 2 is not supported", "pip install --upgrade")


def test_a_worker_with_another_model(served: str) -> None:
    """The models that are served are named."""
    ended = doctor("--broker", served, "--model", "other")
    assert_fault(ended, "workers", "served: instant", "--model instant")


def test_a_frozen_worker(mosquitto_broker: Broker) -> None:
    """Fault scenarios 2 and 28: its status says online. Its clock is wrong, so that logs are not comparable."""
    settings = NullWorkerSettings(height=64, width=96)
    options = ("--broker", mosquitto_broker.url, "--model", "instant")
    with NullWorkerProcess(mosquitto_broker.url, settings, clock_offset_s=3600) as running:
        ahead = doctor(*options)
        freeze(running.pid)
        try:
            frozen = doctor(*options)
        finally:
            resume(running.pid)
    assert_fault(ahead, "worker's clock", "+3600 s", "timedatectl", "warning")
    assert_fault(frozen, "silent workers", "instant", "skylane cloud serve --worker instant")


def test_a_worker_whose_model_fails(mosquitto_broker: Broker) -> None:
    """Fault scenario 18: only a test frame shows it, as the worker announces the model all the same."""

    def fail() -> None:
        raise RuntimeError("broken weights")

    with serving(lambda _: BrokerOptions(mosquitto_broker.url).open("worker", None), model(fail)):
        ended = doctor("--frame", "--broker", mosquitto_broker.url, "--model", "tiny")
    assert_fault(ended, "test frame", "internal error in inference", "skylane cloud serve --model tiny")


def test_a_name_that_is_taken(served: str) -> None:
    """Fault scenario 17: a second vehicle of that name would end."""
    publish(served, VEHICLE_STATUS.of(vehicle="car-7"), pack_status(NodeStatus(NodeState.ONLINE, "abc")))
    ended = doctor("--broker", served, "--model", "instant", "--vehicle", "car-7")
    assert_fault(ended, "vehicle name", "car-7 is online", "--vehicle OTHER", "warning")


def test_workers_without_a_broker(served: str, gateway: str) -> None:
    """A vehicle that calls its workers by gRPC or HTTP has no broker to check; another port has no worker."""
    assert served
    options = ("--transport", "oip-rest", "--model", "instant", "--frame")
    _, found = doctor(*options, "--worker-address", gateway)
    assert found[f"worker {gateway}"]["severity"] == "ok"
    assert "answered" in found["test frame"]["finding"]
    free = f"127.0.0.1:{free_port()}"
    ended = doctor(*options, "--worker-address", free)
    assert_fault(ended, f"worker {free}", "", f"skylane cloud serve --http {free} --model instant")


def test_workers_that_hang_are_checked_side_by_side() -> None:
    """One after the other, they would take longer than the command has."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(4)]
        addresses = [f"127.0.0.1:{server.getsockname()[1]}" for server in servers]
        options = [word for address in addresses for word in ("--worker-address", address)]
        ended = doctor_process("--transport", "grpc", *options)
    for address in addresses:
        remedy = f"skylane cloud serve --grpc {address}"
        assert_fault(ended, f"worker {address}", "no worker is online: start", remedy)


def test_a_run_that_was_killed(tmp_path: Path) -> None:
    """Fault scenario 7 leaves a log without its last rows."""
    folder = write_run(tmp_path / "runs" / "killed", SyntheticRunPlan())
    change_manifest(folder, state="running")
    ended = doctor("--broker", "mqtt://127.0.0.1:1", cwd=tmp_path)
    assert_fault(ended, "runs", "1 killed runs", "skylane report runs/killed --repair", "warning")


def test_a_port_that_is_taken(mosquitto_broker: Broker) -> None:
    """The process that holds it is named; a worker is, too, unless it is the one to be checked."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        options = ("--http", address, "--broker", mosquitto_broker.url, "--models", ROOT / "models")
        taken = doctor("worker", *options)
        code = "import sys, time; time.sleep(600)"
        words = ["cloud", "serve", "--worker", "w-fast"]
        with subprocess.Popen([sys.executable, "-c", code, *words], pass_fds=[holder.fileno()]) as process:
            holder.close()  # The other process alone has the port.
            try:
                other = doctor("worker", "--worker", "w-slow", *options)
                _, same = doctor("worker", "--worker", "w-fast", *options)
            finally:
                process.kill()
    assert_fault(taken, "ports", f"(process {os.getpid()})", "ss -ltnp")
    assert_fault(other, "ports", "worker w-fast (process", "ss -ltnp")
    assert same["ports"]["severity"] == "ok"


def test_a_port_of_the_vehicle_that_is_taken(tmp_path: Path) -> None:
    """Metrics are served by vehicles, too; and the view's certificate may be none."""
    (tmp_path / "junk.pem").write_text("junk")
    config = tmp_path / "edge.yaml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        keys = {"metrics": address, "view": "foxglove", "view_tls_cert": "junk.pem", "view_tls_key": "junk.pem"}
        config.write_text("".join(f"{key}: {value}\n" for key, value in keys.items()))
        ended = doctor("--config", config, cwd=tmp_path)
    assert_fault(ended, "ports", f"{address}: Address already in use", "--metrics 127.0.0.1:OTHER_PORT")
    found = assert_fault(ended, "view", "junk.pem cannot be used", "--view-tls-cert FILE")
    assert {"libraries [metrics]", "libraries [view]"} <= found.keys()


def test_models_that_cannot_be_served(tmp_path: Path) -> None:
    """A copy that was cut off, a typing error in the name, whose most similar model is named, and no repository."""
    shutil.copytree(ROOT / "models" / "road-small", tmp_path / "road-small")
    damaged = next(path for path in (tmp_path / "road-small").iterdir() if path.suffix == ".pb")
    damaged.write_bytes(damaged.read_bytes()[:-1])
    options = ("worker", "--broker", "mqtt://127.0.0.1:1", "--models")
    ended = doctor(*options, tmp_path)
    assert_fault(ended, "model road-small", "its manifest", "skylane model build road-small")
    ended = doctor(*options, ROOT / "models", "--model", "road-smal")
    assert_fault(ended, "model road-smal", "did you mean road-small", "skylane cloud serve --model road-small")
    assert_fault(doctor(*options, tmp_path / "none"), "models", "none", "")


def test_a_full_disk(tmp_path: Path) -> None:
    """Fault scenario 19."""
    with small_disk(tmp_path / "small", 300_000):
        ended = doctor("--out", tmp_path / "small" / "run", "--broker", "mqtt://127.0.0.1:1")
    assert_fault(ended, "disk", "the disk is full", "--out OTHER_FOLDER")


def test_a_missing_extra(tmp_path: Path) -> None:
    """An installation without PyAV and rosbags, made of links to the libraries of this one."""
    site = Path(str(distribution("click").locate_file("")))
    for entry in site.iterdir():
        if not entry.name.lower().startswith(("av", "rosbags", "__editable__")) and entry.suffix != ".pth":
            (tmp_path / entry.name).symlink_to(entry)
    ended = doctor_process("--broker", "mqtt://127.0.0.1:1", flags=("-S",), PYTHONPATH=f"{ROOT}:{tmp_path}")
    assert_fault(ended, "libraries [edge]", "av, rosbags of the extra [edge] not installed", "skylane[edge]")


@pytest.mark.parametrize(("state", "severity"), [(5, "warning"), (0, "ok")])
def test_a_clock_that_nothing_synchronises(tmp_path: Path, state: int, severity: str) -> None:
    """The kernel's answer is replaced by a library, as no test may change the clock of the machine."""
    if shutil.which("gcc") is None:
        pytest.skip("no C compiler")
    source, library = tmp_path / "clock.c", tmp_path / "clock.so"
    source.write_text(f"int adjtimex(void *unused) {{ return {state}; }}")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    ended = doctor_process("--broker", "mqtt://127.0.0.1:1", LD_PRELOAD=str(library))
    assert ended[1]["clock"]["severity"] == severity
    if severity == "warning":
        assert_fault(ended, "clock", "not synchronised", "timedatectl set-ntp true", "warning")


@pytest.mark.parametrize("role", ["vehicle", "worker"])
def test_the_table(role: str, mosquitto_broker: Broker) -> None:
    """For people: every fault is repeated below the table with its remedy alone on a line, to be copied."""
    code, shown = run_doctor(role, "--no-frame", "--broker", mosquitto_broker.url)
    assert code in (0, 1, 3)
    assert "skylane doctor" in shown
    assert f"\n    skylane cloud serve --broker {mosquitto_broker.url}\n" in shown
