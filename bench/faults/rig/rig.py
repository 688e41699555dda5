"""What a scenario is played on: a broker, workers, vehicles and links as processes of their own, ended when it ends."""

import os
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import psutil

from bench.faults.rig.vehicle_process import VehicleProcess
from bench.harness.frame_accounting import FrameAccounts
from bench.link.link import Link, LinkSpec
from bench.load.null_worker import NullWorkerProcess, NullWorkerSettings, expected_labels
from shared.broker.broker import Broker
from shared.errors import SkylaneError
from shared.imaging.opencv import cv2
from shared.messages.topics import camera_name
from shared.runlog.latency_log import Outcome, read_rows

MODEL = "instant"
HEIGHT, WIDTH = 48, 80  # Pixels of every picture and of the model's input: small, so that a scenario costs little.
OVERLOAD_S = 300.0
_LOOK_S = 0.02

Entered = TypeVar("Entered")


class RigError(SkylaneError):
    """Something that a scenario waited for did not happen: the bench cannot tell whether the promise holds."""


class Rig(AbstractContextManager["Rig"]):
    """Starts what a scenario asks for. Everything it started has ended when the block ends, frozen or not.

    `chance` is seeded by whoever runs the bench: a scenario that draws from it can be played again.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        on_step: Callable[[str], None] = lambda _: None,
        *,
        overload_s: float = OVERLOAD_S,
    ) -> None:
        """`folder` takes the runs, and is kept; `on_step` is told what is being done.

        `overload_s`: how long the scenario of that name lasts.
        """
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.chance = random.Random(seed)
        self.say = on_step
        self.overload_s = overload_s
        self._stack = ExitStack()
        self._pictures: dict[tuple[int, int, int], Path] = {}

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def enter(self, context: AbstractContextManager[Entered]) -> Entered:
        """Have something of a scenario's own end with the rig."""
        return self._stack.enter_context(context)

    def broker(self, port: int = 0, **options: Any) -> Broker:
        """A real Mosquitto; on `port` again after it was killed and `stop()`ped. `options`: see Broker.start."""
        broker = self._stack.enter_context(Broker.start(port=port, kind="mosquitto", **options))
        self._stack.callback(resume, broker.pid)
        return broker

    def worker(
        self,
        url: str,
        name: str = "worker-1",
        *,
        think_ms: float = 5.0,
        clock_offset_s: float = 0.0,
        environment: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> NullWorkerProcess:
        """A worker that waits `think_ms` and answers the labels that a picture's own pixels tell; it logs to `<name>.log`.

        `clock_offset_s`: how far its clock is ahead. `environment`: added to this process's. `settings`: see
        NullWorkerSettings.
        """
        size = {"height": HEIGHT, "width": WIDTH} | settings
        told = NullWorkerSettings(worker=name, model=MODEL, think_ms=think_ms, labels_from_pixels=True, **size)
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / f"{name}.log"
        worker = self._stack.enter_context(
            NullWorkerProcess(url, told, clock_offset_s=clock_offset_s, environment=environment, log=log)
        )
        self._stack.callback(resume, worker.pid)
        return worker

    def vehicle(
        self,
        url: str,
        name: str = "vehicle-1",
        *,
        pictures: int = 400,
        rate_hz: float | None = None,
        flags: Sequence[str] = (),
        **options: Any,
    ) -> VehicleProcess:
        """`skylane edge play` over so many different pictures, lossless; it has begun when this returns.

        `rate_hz`: how many frames fall due a second, answered or not; None: every frame is sent, as fast as answers come
        (`--closed-loop`), four at a time. `flags` come last and win. `options`: see VehicleProcess.
        """
        usual = ["--broker", url, "--model", MODEL, "--codec", "raw", "--sink", "png"]
        usual += ["--closed-loop"] if rate_hz is None else ["--arrivals", "uniform", "--arrival-rate", str(rate_hz)]
        source = options.pop("source", None) or self.pictures(pictures)
        vehicle = VehicleProcess(source, self.folder / name, [*usual, *flags], **options)
        self._stack.enter_context(vehicle)
        self._stack.callback(resume, vehicle.pid)
        return vehicle

    def link(self, to: Broker, spec: LinkSpec | None = None) -> Link:
        """A link to a broker that can be made as bad as wanted while it is used; `link.url` is what to connect to."""
        link = Link(spec or LinkSpec(), to.listener.host, to.listener.port)
        self._stack.callback(link.close)
        return link

    def pictures(self, count: int, height: int = HEIGHT, width: int = WIDTH) -> Path:
        """A folder of so many different pictures of noise, PNG."""
        key = (count, height, width)
        if key not in self._pictures:
            folder = self.folder / f"pictures-{count}-{width}x{height}"
            folder.mkdir(parents=True, exist_ok=True)
            noise = np.random.default_rng(count)
            for index in range(count):
                cv2.imwrite(str(folder / f"{index:05d}.png"), noise.integers(0, 256, (height, width, 3), np.uint8))
            self._pictures[key] = folder
        return self._pictures[key]

    def wait(self, condition: Callable[[], object], what: str, limit_s: float = 60.0) -> float:
        """Wait until `condition` is true; how many seconds that took.

        Raises:
            RigError: it was not within `limit_s`; `what` says what it was.
        """
        began_s = time.monotonic()
        while not condition():
            if time.monotonic() - began_s > limit_s:
                raise RigError(f"waited {limit_s:g} s in vain: {what}")
            time.sleep(_LOOK_S)
        return time.monotonic() - began_s

    def wait_for_frames(self, vehicles: Sequence[VehicleProcess], more: int, outcome: Outcome | None = None) -> float:
        """Wait until so many more frames of each vehicle have their row (and ended so); how many seconds that took.

        Raises:
            RigError: they have not within a minute.
        """
        wanted = [vehicle.closed(outcome) + more for vehicle in vehicles]
        return self.wait(
            lambda: all(vehicle.closed(outcome) >= count for vehicle, count in zip(vehicles, wanted, strict=True)),
            f"{more} more frames of each vehicle{f' to be {outcome.value}' if outcome else ''}",
        )

    def accounts(self, *vehicles: VehicleProcess) -> FrameAccounts:
        """What became of the frames of vehicles that have ended, each mask held against its own picture."""
        accounts = FrameAccounts()
        for vehicle in vehicles:
            accounts.add(vehicle.folder, vehicle_truth(vehicle.source))
        return accounts


def kill(pid: int) -> None:
    """End a process without a word."""
    os.kill(pid, signal.SIGKILL)


def freeze(pid: int) -> None:
    """Have a process stand still until it is told to `resume`."""
    os.kill(pid, signal.SIGSTOP)


def resume(pid: int) -> None:
    """Have a process that stands still go on; one that is gone is left in peace."""
    if psutil.pid_exists(pid):
        os.kill(pid, signal.SIGCONT)


def rss_bytes(pid: int) -> int:
    """Resident memory of a process."""
    size: int = psutil.Process(pid).memory_info().rss
    return size


def vehicle_truth(source: Path, *, only_written: bool = False) -> Callable[[Path], tuple[int, int]]:
    """Holds the masks that a run of a folder of pictures wrote against what each picture's own pixels tell.

    `only_written`: one that is not on the disk is no fault, as where the vehicle was killed.
    """
    pictures = sorted(source.iterdir())

    def check(run: Path) -> tuple[int, int]:
        checked = wrong = 0
        for row in read_rows(run):
            if row["outcome"] != Outcome.ANSWERED:
                continue
            index = int(row["frame_index"])
            mask = _read(run / "masks" / camera_name(row["camera"]) / f"{index:06d}.png")
            if only_written and not mask.size:
                continue
            picture = _read(pictures[index % len(pictures)])  # `--loop` counts on.
            checked += 1
            wrong += not np.array_equal(mask, expected_labels(picture[..., ::-1]))  # OpenCV reads BGR.
        return checked, wrong

    return check


def _read(path: Path) -> npt.NDArray[np.uint8]:
    """A picture as it is in the file; empty where there is none."""
    pixels = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    return np.empty((0, 0, 3), np.uint8) if pixels is None else np.asarray(pixels, np.uint8)
