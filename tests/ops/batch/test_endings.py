"""Processes that die, a command that is stopped or killed: nothing is lost, and the same command continues."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from ops.batch.executor import BagProgress
from tests.ops.batch.rig import MODEL, MODELS, Watcher, contents, run, write_library
from tests.support.command import Command

WAIT_S = 120.0


def worker_processes(pid: int) -> list[psutil.Process]:
    """Returns the processes of the local executor that a process has started."""
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # It has ended, or is a zombie.
            if "spawn_main" in " ".join(child.cmdline()):
                found.append(child)
    return found


class Killer:
    """Kills a process of the executor when a bag has its second frame, up to `deaths` times in all."""

    def __init__(self, deaths: int) -> None:
        self.deaths = deaths

    def __call__(self, progress: BagProgress) -> None:
        """Handles the progress of a bag."""
        if self.deaths and progress.frames == 2:
            self.deaths -= 1
            worker_processes(os.getpid())[0].kill()


def start(library: Path, out: Path) -> Command:
    """Starts `skylane batch` in two processes, as a command of its own."""
    return Command("batch", library, "--out", out, "--model", MODEL, "--models", MODELS, "--processes", 2)


def workers_after_a_bag(running: Command) -> list[psutil.Process]:
    """Waits until a bag is done; returns the processes of the executor."""
    assert running.wait_until(lambda: any(line.endswith("frames") for line in running.log_lines), WAIT_S)
    return worker_processes(running.pid)


def test_the_bag_of_a_killed_process_is_done_by_another(tmp_path: Path) -> None:
    """The kernel kills a process if memory is short; the results are those of an undisturbed run."""
    library = write_library(tmp_path / "library", bags=4)
    assert run(library, tmp_path / "calm").failed == {}
    killer = Killer(deaths=2)  # A third one at the same bag would end it.
    assert run(library, tmp_path / "killed", Watcher(killer), processes=2).failed == {}
    assert killer.deaths == 0
    assert contents(tmp_path / "killed") == contents(tmp_path / "calm")


def test_a_bag_that_kills_its_process_fails_by_name_and_the_others_are_done(tmp_path: Path) -> None:
    """A frame that makes a library crash must not end the batch, or repeat for ever."""
    library = write_library(tmp_path / "library", bags=3)
    deaths: list[str] = []

    def kill(progress: BagProgress) -> None:
        if progress.bag == "1.bag" and progress.frames == 2:
            deaths.append(progress.bag)
            worker_processes(os.getpid())[0].kill()

    result = run(library, tmp_path / "out", Watcher(kill))
    assert len(deaths) == 3
    assert sorted(result.done) == ["day/0.mcap", "folder-2"]
    assert "3 processes that had it have ended; the last one was killed by SIGKILL" in result.failed["1.bag"]
    assert run(library, tmp_path / "out").failed == {}


def test_a_killed_command_is_continued_by_the_same_command(tmp_path: Path) -> None:
    """Its processes end by themselves; finished bags are kept, and the result is that of an undisturbed run."""
    library, out = write_library(tmp_path / "library", bags=4, frames=20), tmp_path / "out"
    with start(library, out) as running:
        workers = workers_after_a_bag(running)
        running.kill()
        psutil.wait_procs(workers, WAIT_S)
        assert not [worker for worker in workers if worker.is_running()]
    assert not (out / "frames.parquet").exists()
    result = run(library, out)
    assert result.finished
    assert len(result.finished) + len(result.done) == 4
    assert run(library, tmp_path / "calm").failed == {}
    assert contents(out) == contents(tmp_path / "calm")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_command_leaves_only_finished_bags(tmp_path: Path, number: signal.Signals) -> None:
    """The message says how to continue, and no process is left."""
    library, out = write_library(tmp_path / "library", bags=5, frames=20), tmp_path / "out"
    with start(library, out) as running:
        workers = workers_after_a_bag(running)
        assert running.end(number)[0] == 130
        assert any("the same command continues" in line for line in running.log_lines)
        psutil.wait_procs(workers, WAIT_S)
        assert not any(worker.is_running() for worker in workers)
    contents(out)
    assert run(library, out).failed == {}
