import errno
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from shared import clock
from shared.errors import SkylaneError
from shared.resources.sampler import COLUMNS, MACHINE, ResourceSampler
from shared.resources.tcp_bytes import TcpCount, TcpTable
from shared.resources.usage import CpuShare, MachineUsage, ProbeGoneError, ProcessUsage, ResourceUsage
from shared.runtime.periodic import FAILURES
from tests.full_disk import disk_of
from tests.shared.resources.samples import OWN, SECOND_NS, WAIT_S, rows, wait_for_samples


@contextmanager
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """Runs a process that does nothing until it is killed."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_cpu_share_is_relative_to_one_core_since_the_last_sample() -> None:
    """One second of CPU time in two seconds is 50 %; four busy cores are 400 %."""
    share = CpuShare()
    assert share.percent(10.0, 0) is None
    assert share.percent(11.0, 2 * SECOND_NS) == 50.0
    assert share.percent(15.0, 3 * SECOND_NS) == 400.0
    assert share.percent(15.01, 3 * SECOND_NS + 1_000_000) is None  # One clock tick in a millisecond would be 1000 %.
    assert share.percent(15.5, 4 * SECOND_NS) == pytest.approx(50.0)


def test_a_process_is_sampled_with_its_cpu_time_and_memory() -> None:
    """The values agree with those of the process itself."""
    usage = ProcessUsage(os.getpid(), TcpTable())
    assert usage.sample(clock.now_ns()).cpu_percent is None
    began_ns, cpu_s = clock.now_ns(), time.process_time()
    while clock.now_ns() - began_ns < 3 * SECOND_NS // 10:
        pass
    spent_s = time.process_time() - cpu_s
    now = clock.now_ns()
    sample = usage.sample(now)
    assert sample.pid == os.getpid()
    assert sample.cpu_percent is not None
    assert sample.cpu_percent * (now - began_ns) / 1e11 == pytest.approx(
        spent_s, abs=0.1
    )  # CPU times have a resolution of 10 ms.
    assert sample.rss_bytes is not None
    assert 0.5 < sample.rss_bytes / psutil.Process().memory_info().rss < 2


def test_an_ended_process_is_reported_before_it_is_reaped() -> None:
    """A zombie uses no resources, and its process id will be reused."""
    with sleeper() as process:
        usage = ProcessUsage(process.pid, TcpTable())
        usage.sample(clock.now_ns())
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(ProbeGoneError):
            usage.sample(clock.now_ns())
    with pytest.raises(ProbeGoneError):
        ProcessUsage(process.pid, TcpTable())


def test_the_machine_is_sampled_with_its_unavailable_memory() -> None:
    """The sample shows other load on the machine."""
    sample = MachineUsage().sample(clock.now_ns())
    assert sample.rss_bytes is not None
    assert 0 < sample.rss_bytes < psutil.virtual_memory().total
    assert sample.pid is None


@pytest.mark.parametrize(("host", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)])
def test_tcp_bytes_count_the_payload_since_the_first_sample(host: str, family: int) -> None:
    """The count is exact and includes closed connections."""
    table = TcpTable()
    try:
        server = socket.create_server((host, 0), family=family)
    except OSError as error:
        pytest.skip(f"this machine has no {host}: {error}")
    address = (host, server.getsockname()[1])
    with server, socket.create_connection(address) as early:
        there, _ = server.accept()
        with there:
            _exchange(early, there, 1000)
            count = TcpCount(os.getpid(), table)
            assert count.sample() is None  # The table is not filled yet.
            table.refresh()
            if table.sockets is None:
                pytest.skip("this kernel does not report its sockets (NETLINK_SOCK_DIAG)")
            first = count.sample()
            assert first is not None
            assert (first.received, first.sent) == (0, 0)
            _exchange(early, there, 5000)
            table.refresh()
            second = count.sample()
            assert second is not None
            assert (second.received, second.sent) == (5000, 5000)
        with socket.create_connection(address) as late, server.accept()[0] as other:
            _exchange(late, other, 70_000)
            table.refresh()
            count.sample()
        table.refresh()
        last = count.sample()
        assert last is not None
        assert (last.received, last.sent) == (75_001, 75_000)  # The end of a connection counts as a byte.
        assert len(count.latest) <= len(list(psutil.Process().net_connections("tcp"))), "closed sockets use memory"


def _exchange(sender: socket.socket, receiver: socket.socket, size: int) -> None:
    sender.sendall(b"x" * size)
    while size:
        size -= len(receiver.recv(size))


def test_bytes_are_unknown_without_socket_diagnostics(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox may forbid them; unknown is not zero."""

    def refused(*_: object) -> socket.socket:
        raise PermissionError

    table = TcpTable()
    monkeypatch.setattr("shared.resources.tcp_bytes.socket.socket", refused)
    table.refresh()
    sample = ProcessUsage(os.getpid(), table).sample(clock.now_ns())
    assert (sample.bytes_in, sample.bytes_out) == (None, None)


def test_each_round_writes_a_row_per_node(tmp_path: Path) -> None:
    """Rounds run from the start to the end of the block; a process may be added in between."""
    path = tmp_path / "resources.csv"
    with sleeper() as process, ResourceSampler(path, {OWN: os.getpid()}, interval_s=0.05) as sampler:
        wait_for_samples(sampler, 2)
        sampler.watch("worker/late", process.pid)
        wait_for_samples(sampler, 4)
    sampled = rows(path)
    assert tuple(sampled[0]) == COLUMNS
    assert [row["node"] for row in sampled[:2]] == [MACHINE, OWN]
    own_rows = [row for row in sampled if row["node"] == OWN]
    assert len(own_rows) == sampler.samples
    assert own_rows[0]["cpu_percent"] == ""
    assert {row["pid"] for row in own_rows} == {str(os.getpid())}
    assert {row["pid"] for row in sampled if row["node"] == "worker/late"} == {str(process.pid)}
    times = [int(row["at_ns"]) for row in sampled]
    assert times == sorted(times)
    assert "resources" not in {thread.name for thread in threading.enumerate()}
    account = sampler.account()
    assert account["samples"] == sampler.samples
    assert account["cpu_us_per_sample"] > 0
    assert "samples, each took" in sampler.report_lines()[0]


def test_the_sampler_stops_at_once(tmp_path: Path) -> None:
    """The end of a run does not wait for the next sample."""
    with ResourceSampler(tmp_path / "resources.csv", {}, interval_s=3600) as sampler:
        pass
    assert sampler.samples == 2


def test_ended_and_missing_processes_are_reported_and_others_sampled(tmp_path: Path) -> None:
    """Benches kill workers on purpose."""
    path = tmp_path / "resources.csv"
    with sleeper() as process:
        gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
        nodes = {"worker/w": process.pid, "broker": int(gone.stdout), OWN: os.getpid()}
        with ResourceSampler(path, nodes, interval_s=0.02) as sampler:
            process.kill()
            process.wait()
            wait_for_samples(sampler, sampler.samples + 3)
    assert sampler.remarks[0].startswith("broker is not sampled: ")
    assert sampler.remarks[1].startswith("worker/w is no longer sampled: ")
    assert len(sampler.remarks) == 2
    sampled = rows(path)
    assert sampled[-1]["node"] == OWN
    assert 1 <= sum(row["node"] == "worker/w" for row in sampled) < sampler.samples


def test_a_full_disk_ends_only_the_sampling(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The run goes on, whole rows remain, and the account contains the reason."""
    path = tmp_path / "resources.csv"
    with disk_of(1000), ResourceSampler(path, {OWN: os.getpid()}, interval_s=0.005) as sampler:
        while sampler.fault is None:
            time.sleep(0.01)
    assert caplog.text.count("file of the run cannot be written") == 1
    assert path.read_bytes().endswith(b"\n")
    assert len(rows(path)) >= 2
    assert sampler.account()["fault"] == str(sampler.fault)
    assert any("ends early" in line for line in sampler.report_lines())


def test_no_rows_are_written_without_the_header(tmp_path: Path) -> None:
    """A full disk may have space for a row but not for the header."""
    path = tmp_path / "resources.csv"
    with disk_of(len(",".join(COLUMNS)) - 1):
        sampler = ResourceSampler(path, {}, interval_s=0.005).__enter__()
    sampler.__exit__()
    assert sampler.fault
    assert path.read_bytes() == b""


def test_an_os_error_costs_one_sample_of_its_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many open files for a while must not end the run, nor the samples afterwards."""
    failures = iter(range(2))
    sample = MachineUsage.sample

    def fail_twice(probe: MachineUsage, at_ns: int) -> ResourceUsage:
        if next(failures, None) is not None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return sample(probe, at_ns)

    monkeypatch.setattr(MachineUsage, "sample", fail_twice)
    path = tmp_path / "resources.csv"
    with ResourceSampler(path, {OWN: os.getpid()}, interval_s=0.005) as sampler:
        wait_for_samples(sampler, 5)
    assert sum(row["node"] == MACHINE for row in rows(path)) == sampler.samples - 2
    assert [line for line in sampler.report_lines() if "machine was not sampled at times" in line] == sampler.remarks


def test_an_existing_or_unwritable_file_is_refused(tmp_path: Path) -> None:
    """Samples of another run are not overwritten."""
    path = tmp_path / "resources.csv"
    path.write_text("mine")
    with pytest.raises(SkylaneError, match="already exists: choose another file"), ResourceSampler(path, {}):
        pass
    assert path.read_text() == "mine"
    with (
        pytest.raises(SkylaneError, match="No such file or directory"),
        ResourceSampler(tmp_path / "no" / "where.csv", {}),
    ):
        pass


def test_an_unexpected_exception_ends_one_round_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug in a probe is logged and counted; the run and later samples go on."""
    path, failures = tmp_path / "a.csv", FAILURES.by_name().get("resources", 0)
    with ResourceSampler(path, {}, interval_s=0.01) as sampler:
        with monkeypatch.context() as patched:
            patched.setattr(MachineUsage, "sample", lambda *_: 1 / 0)
            deadline_s = time.monotonic() + WAIT_S
            while FAILURES.by_name().get("resources", 0) < failures + 3:
                assert time.monotonic() < deadline_s
                time.sleep(0.01)
        wait_for_samples(sampler, sampler.samples + 3)
    assert "ZeroDivisionError" in caplog.text
    assert caplog.text.count("periodic work failed") == 1
