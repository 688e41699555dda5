"""The rig of a fault scenario: starts its processes (broker, workers, vehicles, links) and ends them with it."""

import logging
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
import pytest

from analysis.logs.frame_accounting import FrameAccounts
from ops.broker.broker import Broker
from ops.link.link import Link
from ops.processes.null_worker import NullWorkerProcess, NullWorkerSettings, expected_labels
from ops.processes.vehicle_process import VehicleProcess
from shared.errors import SkylaneError
from shared.imaging.opencv import cv2
from shared.messages.topics import camera_name
from shared.network.link_spec import LinkSpec
from shared.runlog.latency_log import Outcome, read_journal, read_rows
from tests.support.faults.finding import Figure, Finding

ROOT = Path(__file__).resolve().parents[3]  # The working directory of Python processes that import this package.
MODEL = "instant"
HEIGHT, WIDTH = 48, 80  # Size of images and of the model's input, in pixels: small, to keep scenarios cheap.
_LOOK_S = 0.02
_log = logging.getLogger(__name__)
_log.setLevel(
    logging.INFO
)  # pytest shows the steps of a scenario that failed, and all steps with `--log-cli-level info`.

Entered = TypeVar("Entered")


class RigError(SkylaneError):
    """An expected event did not happen, so the promise of the scenario cannot be checked."""


class UnavailableError(pytest.skip.Exception):  # type: ignore[name-defined,misc]  # mypy takes it for a variable.
    """This machine or this user cannot cause the fault; the message says what is missing. Skips the test."""


class Rig(AbstractContextManager["Rig"]):
    """Starts processes for a scenario and ends all of them with the block, also frozen ones.

    `chance` is the seeded random generator of the run, so that a scenario can be repeated.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        on_step: Callable[[str], None] = _log.info,
    ) -> None:
        """Creates a rig.

        Args:
            folder: Folder of the runs, which is kept.
            seed: Seed of `chance`.
            on_step: Called with a description of each step; they are logged by default.
        """
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.chance = random.Random(seed)
        self.say = on_step
        self.finding: Finding | None = None
        self.vehicles: list[VehicleProcess] = []  # All vehicles, in the order in which they were started.
        self._stack = ExitStack()

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def conclude(
        self,
        accounts: FrameAccounts,
        *figures: Figure,
        remarks: Sequence[str] = (),
        broken: Sequence[str] = (),
        keeps_masks: bool = True,
    ) -> None:
        """Ends a scenario with its finding; the test fails if a promise does not hold. The parameters are those of `Finding`."""
        self.finding = Finding(accounts, *figures, remarks=remarks, broken=broken, keeps_masks=keeps_masks)
        if self.finding.failures:
            pytest.fail("\n".join(self.finding.failures), pytrace=False)

    def enter(self, context: AbstractContextManager[Entered]) -> Entered:
        """Enters a context that ends with the rig."""
        return self._stack.enter_context(context)

    def broker(self, port: int = 0, **options: Any) -> Broker:
        """Starts a real Mosquitto; use the same `port` to restart a killed one. `options`: see Broker.start."""
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
        **changes: Any,
    ) -> NullWorkerProcess:
        """Starts a worker that waits `think_ms` and answers labels computed from the image's pixels.

        It logs to `<name>.log`. `clock_offset_s` is the lead of its clock, `environment` is added to this process's,
        `changes`: other values for fields of NullWorkerSettings.
        """
        fields = {"height": HEIGHT, "width": WIDTH} | changes
        settings = NullWorkerSettings(worker=name, model=MODEL, think_ms=think_ms, labels_from_pixels=True, **fields)
        log = self.folder / f"{name}.log"
        worker = self._stack.enter_context(
            NullWorkerProcess(url, settings, clock_offset_s=clock_offset_s, environment=environment, log=log)
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
        """Starts `skylane edge play` with `pictures` different lossless images; returns when it has begun.

        `rate_hz` is the rate of an open loop; None: a closed loop with a window of four. `flags` are added last and
        override others. `options`: see VehicleProcess.
        """
        usual = ["--broker", url, "--model", MODEL, "--codec", "raw"]
        usual += [] if "--no-sinks" in flags else ["--sink", "png"]
        usual += ["--closed-loop"] if rate_hz is None else ["--arrivals", "uniform", "--arrival-rate", str(rate_hz)]
        source = options.pop("source", None) or self.pictures(pictures)
        vehicle = VehicleProcess(source, self.folder / name, [*usual, *flags], **options)
        self._stack.enter_context(vehicle)
        self._stack.callback(resume, vehicle.pid)
        self.vehicles.append(vehicle)
        return vehicle

    def link(self, to: Broker, spec: LinkSpec | None = None) -> Link:
        """Starts an emulated link to a broker whose faults can be changed in use; connect to `link.url`."""
        link = Link(spec or LinkSpec(), to.listener.host, to.listener.port)
        self._stack.callback(link.close)
        return link

    def pictures(self, count: int, height: int = HEIGHT, width: int = WIDTH, name: str = "") -> Path:
        """Returns a folder with `count` different PNG images of noise; give a `name` to get files that may be changed."""
        folder = self.folder / (name or f"pictures-{count}-{width}x{height}")
        if not folder.exists():
            folder.mkdir()
            noise = np.random.default_rng(count)
            for index in range(count):
                cv2.imwrite(str(folder / f"{index:05d}.png"), noise.integers(0, 256, (height, width, 3), np.uint8))
        return folder

    def wait(self, condition: Callable[[], object], what: str, limit_s: float = 60.0) -> float:
        """Waits until `condition` is true and returns the seconds that it took.

        Raises:
            RigError: the condition, described by `what`, was not true within `limit_s`.
        """
        began_s = time.monotonic()
        while not condition():
            if time.monotonic() - began_s > limit_s:
                raise RigError(f"not within {limit_s:g} s: {what}")
            time.sleep(_LOOK_S)
        return time.monotonic() - began_s

    def wait_for_frames(self, vehicles: Sequence[VehicleProcess], more: int, outcome: Outcome | None = None) -> float:
        """Waits until `more` further frames of each vehicle have a row (with `outcome`); returns the seconds.

        Raises:
            RigError: this did not happen within a minute.
        """
        wanted = [vehicle.closed(outcome) + more for vehicle in vehicles]
        return self.wait(
            lambda: all(vehicle.closed(outcome) >= count for vehicle, count in zip(vehicles, wanted, strict=True)),
            f"{more} more frames of each vehicle{f' to be {outcome.value}' if outcome else ''}",
        )

    def rows(
        self, outcome: Outcome | None = None, *, due_ns: tuple[float, float] | None = None
    ) -> list[dict[str, str]]:
        """Returns the rows of all vehicles; the parameters are those of `VehicleProcess.rows`."""
        return [row for vehicle in self.vehicles for row in vehicle.rows(outcome, due_ns=due_ns)]

    def end_vehicles(self) -> FrameAccounts:
        """Ends all vehicles, checks that they end in order, and returns the accounting of their frames.

        Raises:
            VehicleError: see VehicleProcess.end.
        """
        for vehicle in self.vehicles:
            if vehicle.is_running:
                vehicle.stop()
        for vehicle in self.vehicles:
            vehicle.end()
        return self.accounts(*self.vehicles)

    def accounts(self, *vehicles: VehicleProcess) -> FrameAccounts:
        """Returns the accounting of vehicles that have ended, with each mask checked against its image."""
        accounts = FrameAccounts()
        for vehicle in vehicles:
            accounts.add(vehicle.folder, vehicle_truth(vehicle.source))
        return accounts


def kill(pid: int) -> None:
    """Kills a process (SIGKILL)."""
    os.kill(pid, signal.SIGKILL)


def freeze(pid: int) -> None:
    """Stops a process (SIGSTOP) until `resume`."""
    os.kill(pid, signal.SIGSTOP)


def resume(pid: int) -> None:
    """Continues a stopped process; does nothing if it has ended."""
    if psutil.pid_exists(pid):
        os.kill(pid, signal.SIGCONT)


def open_frames(run: Path) -> int:
    """Counts the frames of a run that were sent and have no row."""
    sent = {row["sequence"] for row in read_journal(run)}
    return len(sent - {row["sequence"] for row in read_rows(run)})


def answered_since(vehicle: VehicleProcess, since_ns: int) -> list[int]:
    """Returns the answer times of the frames that were due after `since_ns`, from the vehicle's log."""
    return [int(row["t_mask_decoded_ns"]) for row in vehicle.rows(Outcome.ANSWERED) if int(row["t_due_ns"]) > since_ns]


def vehicle_truth(source: Path, *, only_written: bool = False) -> Callable[[Path], tuple[int, int]]:
    """Returns a function that compares the masks of a run with the labels computed from its images.

    The mask of a frame with a reused result is compared with the image of the frame whose result it is. With
    `only_written`, missing masks are not counted, because the vehicle was killed.
    """
    pictures = sorted(source.iterdir())

    def check(run: Path) -> tuple[int, int]:
        checked = wrong = 0
        rows = {row["sequence"]: row for row in read_rows(run)}
        for row in rows.values():
            if not Outcome(row["outcome"]).has_result:
                continue
            index = int(row["frame_index"])
            answered_index = int(rows[row["reused_sequence"] or row["sequence"]]["frame_index"])
            mask = read_image(run / "masks" / camera_name(row["camera"]) / f"{index:06d}.png")
            if only_written and not mask.size:
                continue
            picture = read_image(pictures[answered_index % len(pictures)])  # With `--loop` the index continues.
            checked += 1
            wrong += not np.array_equal(mask, expected_labels(picture[..., ::-1]))  # OpenCV reads BGR.
        return checked, wrong

    return check


def read_image(path: Path) -> npt.NDArray[np.uint8]:
    """Reads an image unchanged; returns an empty array if it is missing."""
    pixels = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    return np.empty((0, 0, 3), np.uint8) if pixels is None else np.asarray(pixels, np.uint8)
