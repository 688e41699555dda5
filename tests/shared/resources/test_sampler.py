"""Sampling real processes, and what stands in for a GPU and a Docker engine where there is none."""

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
from shared.resources.processes import MachineUsage, ProcessUsage
from shared.resources.sampler import COLUMNS, MACHINE, ResourceSampler, ResourcesError
from shared.resources.tcp_bytes import TcpCount, TcpTable
from shared.resources.usage import CpuShare, ProbeGoneError
from tests.full_disk import disk_of
from tests.shared.resources.samples import OWN, SECOND_NS, WAIT_S, rows, wait_for_samples


@contextmanager
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing until it is killed."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_share_of_the_processor_is_of_the_time_between_two_looks() -> None:
    """A second of CPU in two seconds is half a core; four cores busy are 400 %."""
    share = CpuShare()
    assert share.of(10.0, 0) is None
    assert share.of(11.0, 2 * SECOND_NS) == 50.0
    assert share.of(15.0, 3 * SECOND_NS) == 400.0
    assert share.of(15.01, 3 * SECOND_NS + 1_000_000) is None  # One tick within a millisecond would be 1000 %.
    assert share.of(15.5, 4 * SECOND_NS) == pytest.approx(50.0)


def test_a_look_at_a_process_tells_what_it_used() -> None:
    """The report shows it beside the latency: it must be of the process that is named."""
    usage = ProcessUsage(os.getpid(), TcpTable())
    assert usage.look(clock.now_ns()).cpu_percent is None
    begun, cpu_s = clock.now_ns(), time.process_time()
    while clock.now_ns() - begun < 3 * SECOND_NS // 10:
        pass
    spent_s = time.process_time() - cpu_s
    now = clock.now_ns()
    look = usage.look(now)
    assert look.pid == os.getpid()
    assert look.cpu_percent is not None
    assert look.cpu_percent * (now - begun) / 1e11 == pytest.approx(spent_s, abs=0.1)  # The kernel counts in ticks.
    assert look.rss_bytes is not None
    assert 0.5 < look.rss_bytes / psutil.Process().memory_info().rss < 2


def test_a_process_that_ended_is_gone_even_before_it_is_reaped() -> None:
    """A zombie uses nothing, and its number is another's soon."""
    with sleeper() as process:
        usage = ProcessUsage(process.pid, TcpTable())
        usage.look(clock.now_ns())
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(ProbeGoneError):
            usage.look(clock.now_ns())
    with pytest.raises(ProbeGoneError):
        ProcessUsage(process.pid, TcpTable())


def test_the_machine_tells_the_memory_that_is_not_available() -> None:
    """It is sampled to see what else was going on."""
    look = MachineUsage().look(clock.now_ns())
    assert look.rss_bytes is not None
    assert 0 < look.rss_bytes < psutil.virtual_memory().total
    assert look.pid is None


@pytest.mark.parametrize(("host", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)])
def test_tcp_bytes_are_the_payload_of_the_process_since_the_first_look(host: str, family: int) -> None:
    """What a link carries is what offloading costs: to the byte, closed connections included."""
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
            assert count.look() is None  # The table was not asked for yet.
            table.refresh()
            if table.sockets is None:
                pytest.skip("this kernel does not tell of its sockets (NETLINK_SOCK_DIAG)")
            first = count.look()
            assert first is not None
            assert (first.received, first.sent) == (0, 0)
            _exchange(early, there, 5000)
            table.refresh()
            second = count.look()
            assert second is not None
            assert (second.received, second.sent) == (5000, 5000)
        with socket.create_connection(address) as late, server.accept()[0] as other:
            _exchange(late, other, 70_000)
            table.refresh()
            count.look()
        table.refresh()
        last = count.look()
        assert last is not None
        assert (last.received, last.sent) == (75_001, 75_000)  # The end of a connection counts as a byte.
        assert len(count._latest) <= len(list(psutil.Process().net_connections("tcp"))), "closed sockets are kept"


def _exchange(sender: socket.socket, receiver: socket.socket, size: int) -> None:
    sender.sendall(b"x" * size)
    while size:
        size -= len(receiver.recv(size))


def test_a_kernel_that_tells_nothing_leaves_the_bytes_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox without socket diagnosis: unknown is not zero."""

    def refused(*_: object) -> socket.socket:
        raise PermissionError

    table = TcpTable()
    monkeypatch.setattr("shared.resources.tcp_bytes.socket.socket", refused)
    table.refresh()
    look = ProcessUsage(os.getpid(), table).look(clock.now_ns())
    assert (look.bytes_in, look.bytes_out) == (None, None)


def test_every_look_writes_a_row_a_node(tmp_path: Path) -> None:
    """From the first, as the block begins, to the last, as it ends; a process that joins later is sampled from then on."""
    path = tmp_path / "resources.csv"
    with sleeper() as process, ResourceSampler(path, {OWN: os.getpid()}, interval_s=0.05) as sampler:
        wait_for_samples(sampler, 2)
        sampler.watch("worker/late", process.pid)
        wait_for_samples(sampler, 4)
    sampled = rows(path)
    assert tuple(sampled[0]) == COLUMNS
    assert [row["node"] for row in sampled[:2]] == [MACHINE, OWN]
    of_own = [row for row in sampled if row["node"] == OWN]
    assert len(of_own) == sampler.samples
    assert of_own[0]["cpu_percent"] == ""
    assert {row["pid"] for row in of_own} == {str(os.getpid())}
    assert {row["pid"] for row in sampled if row["node"] == "worker/late"} == {str(process.pid)}
    times = [int(row["at_ns"]) for row in sampled]
    assert times == sorted(times)
    assert "resources" not in {thread.name for thread in threading.enumerate()}
    account = sampler.account()
    assert account["samples"] == sampler.samples
    assert account["cpu_us_per_sample"] > 0
    assert "samples, each cost" in sampler.told()[0]


def test_it_ends_at_once(tmp_path: Path) -> None:
    """A run must not wait a minute for the next sample."""
    with ResourceSampler(tmp_path / "resources.csv", {}, interval_s=3600) as sampler:
        pass
    assert sampler.samples == 2


def test_what_ends_or_never_was_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    """Workers are killed on purpose in a bench: the sampling must outlive them."""
    path = tmp_path / "resources.csv"
    with sleeper() as process:
        gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
        nodes = {"worker/w": process.pid, "broker": int(gone.stdout), OWN: os.getpid()}
        with ResourceSampler(path, nodes, interval_s=0.02) as sampler:
            process.kill()
            process.wait()
            wait_for_samples(sampler, sampler.samples + 3)
    assert sampler.remarks[0].startswith("broker is not sampled: ")
    assert sampler.remarks[1].startswith("worker/w is sampled no longer: ")
    assert len(sampler.remarks) == 2
    sampled = rows(path)
    assert sampled[-1]["node"] == OWN
    assert 1 <= sum(row["node"] == "worker/w" for row in sampled) < sampler.samples


def test_a_full_disk_ends_the_sampling_and_hurts_nothing(tmp_path: Path) -> None:
    """The run goes on; whole rows stay; the account says why there are no more."""
    path = tmp_path / "resources.csv"
    with disk_of(1000), ResourceSampler(path, {OWN: os.getpid()}, interval_s=0.005) as sampler:
        while sampler.fault is None:
            time.sleep(0.01)
    assert path.read_bytes().endswith(b"\n")
    assert len(rows(path)) >= 2
    assert sampler.account()["fault"] == str(sampler.fault)
    assert any("ends early" in line for line in sampler.told())


def test_a_disk_that_is_full_from_the_first_leaves_no_rows_without_a_head(tmp_path: Path) -> None:
    """There may be room for a row where there is none for the head: nobody could read such a file."""
    path = tmp_path / "resources.csv"
    with disk_of(len(",".join(COLUMNS)) - 1):
        sampler = ResourceSampler(path, {}, interval_s=0.005).__enter__()
    sampler.__exit__()
    assert sampler.fault
    assert path.read_bytes() == b""


def test_a_look_that_finds_no_file_to_open_hurts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that has too many files open loses its samples, not its run."""

    def look(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(MachineUsage, "look", look)
    path = tmp_path / "resources.csv"
    with ResourceSampler(path, {OWN: os.getpid()}) as sampler:
        pass
    assert {row["node"] for row in rows(path)} == {OWN}
    assert any("machine is sampled no longer" in line for line in sampler.told())


def test_a_file_that_is_there_or_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """What another run sampled is not overwritten."""
    path = tmp_path / "resources.csv"
    path.write_text("mine")
    with pytest.raises(ResourcesError, match="is there already: choose another file"), ResourceSampler(path, {}):
        pass
    assert path.read_text() == "mine"
    with (
        pytest.raises(ResourcesError, match="No such file or directory"),
        ResourceSampler(tmp_path / "no" / "where.csv", {}),
    ):
        pass


def test_a_bug_in_a_look_is_raised_and_not_swallowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not foreseen must be seen."""
    sampler = ResourceSampler(tmp_path / "a.csv", {}, interval_s=0.01).__enter__()
    monkeypatch.setattr(MachineUsage, "look", lambda *_: 1 / 0)
    sampler._ended.wait(WAIT_S)
    with pytest.raises(ZeroDivisionError):
        sampler.__exit__()
