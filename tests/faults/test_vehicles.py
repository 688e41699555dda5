"""Vehicle faults: killed, with a full disk, with a wall clock that jumps, and playing a hostile video."""

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from analysis.logs.frame_accounting import FrameAccounts
from rosbag_tools.messages.ros_types import own_types
from rosbag_tools.records import TopicChannel
from rosbag_tools.writer import BagWriter
from shared import clock
from shared.runlog.latency_log import Outcome
from shared.runlog.run_manifest import read_manifest
from tests.support.faults.finding import Figure
from tests.support.faults.rig import Rig, RigError, UnavailableError, kill, open_frames, vehicle_truth
from tests.support.faults.small_disk import small_disk
from tests.support.faults.wall_clock import LIBRARY, LIBRARY_MISSING, WallClock, can_be_stepped
from tests.support.process_log import ProcessLog
from tests.support.video_streams import COMPRESSED_VIDEO, LOW_DELAY, PERIOD_NS, START_NS, encode, video_message

_PICTURES = 600
_THINK_MS = 40.0  # Time of an answer, so that frames are in flight when the vehicle is killed.
_DISK_BYTES = 192 << 10
_LOG_BYTES = 48 << 10  # Maximum file size, if no disk can be mounted.
_HOUR_S = 3600
_STEP_MS = _HOUR_S * 1e3 / 2  # A duration that contains a step is longer than this.
_DEADLINE = ("--deadline-ms", "20000")  # If it depended on the wall clock, every frame would expire.
_AHEAD_S = 7.25  # Advance of the worker's clock, because an offset of zero could be right by chance.
_SHOWN_S = 60.0  # Time until a process has started and reported its clock.
_SLACK_MS = 1.0  # Tolerance, because two processes read the wall clock at different times.
_SIGNED = frozenset({"clock_offset_ms"})  # All other times of a row are durations.


@pytest.mark.faults(
    7,
    "kill -9 a vehicle with frames in flight, start another beside it",
    "the rows that were written stay, the open frames are closed as aborted",
)
def test_killed_vehicle(rig: Rig) -> None:
    """Kills a vehicle with frames in flight; the next one with a folder next to it closes its log."""
    broker = rig.broker()
    rig.worker(broker.url, think_ms=_THINK_MS)
    killed = rig.vehicle(broker.url, "vehicle-killed", pictures=_PICTURES)
    rig.wait_for_frames([killed], 30)
    kill(killed.pid)
    killed.wait()
    before, answered = open_frames(killed.folder), killed.closed()
    rig.say("started again")
    restarted = rig.vehicle(broker.url, "vehicle-restarted", pictures=_PICTURES)
    rig.wait_for_frames([restarted], 10)
    restarted.end()
    accounts = rig.accounts(restarted)
    # Masks that were not yet on the disk are lost with the vehicle: only existing ones are checked.
    accounts.add(killed.folder, vehicle_truth(killed.source, only_written=True))
    rig.conclude(
        accounts,
        Figure("open frames at the kill", before),
        Figure("open rows after the restart", open_frames(killed.folder), most=0),
        Figure("closed as aborted", accounts.outcomes[Outcome.ABORTED]),
        Figure("rows lost", max(0, answered - len(killed.rows())), most=0),
        broken=() if before else ("no frame was in flight when the vehicle was killed: the fault did not happen",),
    )


@pytest.mark.faults(
    19,
    "the disk that takes the log has room for some of the rows",
    "frames are answered all the same; missing rows are counted and reported",
)
def test_full_disk(rig: Rig) -> None:
    """A vehicle writes its log to a disk that is too small for all rows."""
    broker = rig.broker()
    rig.worker(broker.url)
    with _disk(rig.folder / "vehicle-1") as (wrapper, remark):
        flags = ["--no-sinks", "--frames", str(_PICTURES)]
        vehicle = rig.vehicle(broker.url, pictures=_PICTURES, flags=flags, wrapper=wrapper)
        code = vehicle.wait()
        manifest, rows = read_manifest(vehicle.folder), vehicle.rows()
    if "frames_read" not in manifest:
        raise RigError(f"{vehicle.name} could not write how its run ended: its manifest says {manifest['state']!r}")
    read, lost = manifest["frames_read"], manifest["rows_lost"]
    accounts = FrameAccounts(read, abs(read - len(rows) - lost), outcomes=Counter(manifest["outcomes"]))
    broken = [] if lost else ["no row was lost: the disk did not fill"]
    if not code or f"{lost} rows of" not in vehicle.output:
        broken.append(f"the vehicle ended with exit code {code} and did not say how many rows it lost")
    rig.conclude(
        accounts,
        Figure("rows lost", lost),
        Figure("rows lost and not counted", accounts.unaccounted, most=0),
        Figure("frames not answered", read - accounts.outcomes[Outcome.ANSWERED], most=0),
        remarks=(remark, "its masks were not kept: their labels were not judged"),
        broken=broken,
        keeps_masks=False,
    )


@pytest.mark.faults(
    20,
    "the wall clocks of vehicle and worker jump to an hour ahead and an hour behind",
    "no duration is negative, and the offset between the two clocks stays true to its stated error",
)
def test_stepped_clock(rig: Rig) -> None:
    """Steps the wall clocks of vehicle and worker an hour ahead, then an hour back, at different times."""
    if LIBRARY is None:
        raise UnavailableError(LIBRARY_MISSING)
    broker = rig.broker()
    walls = {node: WallClock(rig.folder / f"wall-clock-{node}") for node in ("vehicle", "worker")}
    # Under libfaketime `time.sleep` fails, so this worker answers at once.
    worker = rig.worker(broker.url, think_ms=0, clock_offset_s=_AHEAD_S, environment=walls["worker"].environment)
    vehicle = rig.vehicle(broker.url, pictures=_PICTURES, flags=_DEADLINE, environment=walls["vehicle"].environment)
    steps = [(node, step_s) for step_s in (_HOUR_S, -_HOUR_S) for node in walls]
    blind = [node for node, pid in (("vehicle", vehicle.pid), ("worker", worker.pid)) if not can_be_stepped(pid)]
    for node, step_s in steps:
        rig.wait_for_frames([vehicle], 30)
        rig.say(f"the {node}'s wall clock {step_s:+d} s")
        walls[node].step(step_s)
        if abs(walls[node].shown_s() - step_s) > _SHOWN_S:
            raise RigError(f"the {node}'s wall clock was not stepped: libfaketime has no effect")
    rig.wait_for_frames([vehicle], 30)
    accounts, answered = rig.end_vehicles(), rig.rows(Outcome.ANSWERED)
    worst_ms, untrue = untrue_offsets(answered, _AHEAD_S * 1e3)
    rig.conclude(
        accounts,
        Figure("negative durations", sum(negatives(row) for row in rig.rows()), most=0),
        Figure("longest journey", max((float(row["total_ms"]) for row in answered), default=None), "ms", _STEP_MS),
        Figure("offsets off by more than they say", untrue, most=0),
        Figure("worst offset error", worst_ms, "ms"),
        Figure("frames not answered", accounts.unanswered, most=0),
        remarks=(f"{len(steps)} steps of up to {2 * _HOUR_S} s",),
        broken=[f"libfaketime is not in the {node}: its clock was not stepped" for node in blind],
    )


def negatives(row: Mapping[str, str]) -> int:
    """Counts the negative durations of a row."""
    return sum(value.startswith("-") for name, value in row.items() if name.endswith("_ms") and name not in _SIGNED)


def untrue_offsets(rows: Iterable[Mapping[str, str]], truth_ms: float) -> tuple[float | None, int]:
    """Returns the largest error of a clock offset in ms, and the number of errors above their stated bound.

    A row without an offset counts as an error above the bound.
    """
    off_ms = [
        (abs(float(row["clock_offset_ms"] or "inf") - truth_ms), float(row["clock_error_ms"] or 0)) for row in rows
    ]
    return max((off for off, _ in off_ms), default=None), sum(off > error + _SLACK_MS for off, error in off_ms)


@contextmanager
def _disk(folder: Path) -> Iterator[tuple[tuple[str, ...], str]]:
    """Mounts a small disk at `folder`, or yields a command prefix that limits file sizes; and a description."""
    prlimit = shutil.which("prlimit")
    command: tuple[str, ...] = ()
    with ExitStack() as stack:
        try:
            stack.enter_context(small_disk(folder, _DISK_BYTES))
            which = f"a disk of {_DISK_BYTES >> 10} KiB"
        except UnavailableError as error:
            if prlimit is None:
                raise
            command, which = (prlimit, f"--fsize={_LOG_BYTES}"), f"{error}; files of {_LOG_BYTES >> 10} KiB at most"
        yield command, which


_MEMORY_MB = 600.0
_HOSTILE_PACKETS = 400  # Of each codec.
_MAX_MISSED = 5.0  # Percent.


@pytest.mark.faults(
    33,
    f"a vehicle plays video topics of H.264, H.265, VP9 and AV1 with {_HOSTILE_PACKETS} packets each, most of them changed",
    f"it takes at most {_MEMORY_MB:g} MB and ends in order; every packet has a row; another vehicle's frames are answered",
)
def test_hostile_video(rig: Rig) -> None:
    """Plays a bag whose packets were changed at random, most of them in the header, beside a good vehicle."""
    bag = rig.folder / "bag"
    with BagWriter(bag) as writer:
        for codec, encoder in LOW_DELAY.items():
            channel = TopicChannel(f"/{codec}/video", COMPRESSED_VIDEO, writer.format.wire)
            packets = [packet.data for packet in encode(*encoder, frames=12)]
            for index in range(_HOSTILE_PACKETS):
                changed = bytearray(packets[index % len(packets)])
                for _ in range(rig.chance.choice((0, 1, 2, 4))):
                    changed[rig.chance.randrange(min(rig.chance.choice((12, 200)), len(changed)))] ^= (
                        1 << rig.chance.randrange(8)
                    )
                stamp_ns = START_NS + index * PERIOD_NS
                message = video_message(writer.format.wire, bytes(changed), stamp_ns, codec)
                writer.write_raw(channel, message, stamp_ns, own_types(writer.format.wire))
    broker = rig.broker()
    rig.worker(broker.url)
    good = rig.vehicle(broker.url, "vehicle-good", rate_hz=10, flags=("--loop", *_DEADLINE))
    rig.wait_for_frames([good], 10)
    began_ns = clock.now_ns()
    hostile = rig.vehicle(broker.url, "vehicle-hostile", source=bag, flags=("--no-sinks", *_DEADLINE))
    with ProcessLog(rig.folder / "processes.csv", interval_s=0.1) as log:
        life = log.watch("vehicle", hostile.name, hostile.pid)
        hostile.wait()
    ended_ns = clock.now_ns()
    peak = life.peak("rss_bytes")
    beside = good.rows(due_ns=(began_ns, ended_ns - 10**9))
    missed = sum(row["outcome"] != Outcome.ANSWERED for row in beside)
    rows = hostile.rows()
    rig.end_vehicles()
    rig.conclude(
        rig.accounts(good),  # Of a video that is not whole, nobody knows the right masks.
        Figure("memory at most", None if peak is None else peak / 1e6, "MB", most=_MEMORY_MB),
        Figure("packets without a row", _HOSTILE_PACKETS * len(LOW_DELAY) - len(rows), most=0),
        Figure("packets refused", sum(row["reason"].startswith("undecodable") for row in rows)),
        Figure("good frames", len(beside)),
        Figure("of which not answered", 100 * missed / max(1, len(beside)), "%", most=_MAX_MISSED),
    )
