"""What offloading adds to bare inference, and how much of the engine's throughput survives the journey.

Rounds alternate: some frames through broker and worker, the same frames straight through the same engine. The bare
engine is fed what the worker's decoder would hand it, so that nothing but the journey differs. Nothing runs beside a
round: the bare engine rests while the worker works, and the other way round.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice, product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.harness.samples import spread
from bench.load.worker_process import Worker
from cloud.models.model import Model
from cloud.models.repository import Repository
from edge.pipeline import Preparation, prepare
from edge.reliability.ledger import FrameRecord
from edge.sources.source import open_source
from shared.broker.broker import Broker
from shared.errors import SkylaneError
from shared.imaging import geometry, image_codecs
from shared.imaging.frames import Frame, Pixels
from shared.imaging.geometry import Resize
from shared.imaging.image_codecs import ImageLimits
from shared.messages.frame import FrameMessage
from shared.messages.model_card import ModelCard
from shared.messages.topics import FrameId
from shared.runlog.latency_log import Outcome, read_rows
from shared.runlog.latency_table import PARTS
from shared.runtime.machine import machine

_SETTLING = 2  # Frames at the start of a round that are not counted: connections and caches settle.
_VEHICLE_PARTS = ("read", "demosaiced", "preprocessed", "encoded")


class BenchError(SkylaneError):
    """A bench could not be run."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured and how often."""

    bag: Path
    models: Path
    model: str
    codec: str = "jpeg"
    quality: int = 85
    rounds: int = 5
    frames: int = 20  # A round.
    window: int = 4  # Of the throughput rounds.
    device: str = "auto"
    broker_kind: str = "auto"
    isolate: bool = False  # Measure a second worker beside, whose engine runs in a process of its own.
    resize: Resize | None = None  # None: as the model card says.
    resize_at: str = "edge"  # Or "cloud", as `skylane edge play --resize-at` has it.


@dataclass(slots=True)
class Rounds:
    """What the rounds gave: milliseconds by frame, frames a second by round."""

    remote_ms: list[list[float]] = field(default_factory=list)
    bare_ms: list[list[float]] = field(default_factory=list)
    remote_hz: list[float] = field(default_factory=list)
    bare_hz: list[float] = field(default_factory=list)
    parts_ms: dict[str, list[float]] = field(default_factory=dict)
    vehicle_ms: list[float] = field(default_factory=list)


def measure(plan: Plan, on_step: Callable[[str], None]) -> dict[str, Any]:
    """Run the rounds; `on_step` is told before each. Returns what `--json` prints.

    Raises:
        SkylaneError: the bag, the model, the broker or the worker cannot be used, or a frame was not answered.
    """
    ways = {"": (), "isolated ": ("--isolate",)} if plan.isolate else {"": ()}
    rounds = {way: Rounds() for way in ways}
    with ExitStack() as stack:
        model = stack.enter_context(Repository(plan.models).load(plan.model))
        brokers = {}  # One for each worker, for those of one broker would share the frames.
        for way, flags in ways.items():
            broker = brokers[way] = stack.enter_context(Broker.start(kind=plan.broker_kind))
            stack.enter_context(
                Worker(broker.url, models=plan.models, model=plan.model, device=plan.device, flags=flags)
            )
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="skylane-bench-")))
        pictures = decoded(plan, model)
        model.warm_up()
        for number, way in product(range(plan.rounds), ways):
            step, run = (
                f"round {number + 1} of {plan.rounds}, {way}",
                folder / f"{way.strip() or 'in-process'}-{number}",
            )
            on_step(f"{step}one frame in flight")
            _latency(rounds[way], played(plan, brokers[way].url, run / "latency", window=1))
            on_step(f"{step}bare inference")
            rounds[way].bare_ms.append(bare(model, pictures, plan.frames))
            on_step(f"{step}window of {plan.window}")
            rows = played(plan, brokers[way].url, run / "throughput", window=plan.window)
            rounds[way].remote_hz.append(rate_hz(rows))
            on_step(f"{step}the bare engine's throughput")
            rounds[way].bare_hz.append(bare_hz(model, pictures, plan.frames))
        result = _result(plan, rounds[""], brokers[""].description, model.describe())
        if plan.isolate:
            result["isolated"] = _ratios(rounds["isolated "])
        return result


def prepared(plan: Plan, model: Model) -> list[FrameMessage]:
    """The bag's frames as the vehicle sends them.

    Raises:
        BenchError: it holds none that can be read.
    """
    preparation = Preparation(
        card=model.card, codec=plan.codec, quality=plan.quality, resize=plan.resize, resize_at=plan.resize_at
    )
    source = open_source(str(plan.bag))
    messages = []
    for frame in islice((item for item in source.frames() if isinstance(item, Frame)), plan.frames):
        journey = FrameRecord(
            FrameId("bench", "bench", "bench", frame.index), frame.camera, frame.index, 0, 0, 0, {}, None
        )
        messages.append(prepare(frame, journey, preparation))
    source.close()
    if not messages:
        raise BenchError(f"{plan.bag} holds no frame that can be read: make one with 'skylane bag make'")
    return messages


def decoded(plan: Plan, model: Model) -> list[Pixels]:
    """The bag's frames as the worker's decoder hands them to the engine: H×W×3 uint8."""
    return [_input(message, model.card) for message in prepared(plan, model)]


def _input(message: FrameMessage, card: ModelCard) -> Pixels:
    picture = image_codecs.decode(
        message.data, message.codec, message.layout, message.shape, ImageLimits(), card.layout
    )
    is_input = message.shape[:2] == (card.height, card.width)
    return picture if is_input else geometry.apply(picture, message.geometry)


def bare(model: Model, pictures: Sequence[Pixels], frames: int) -> list[float]:
    """Milliseconds of each direct call of the model, one picture at a time, after the settling ones."""
    took_ms = []
    for number in range(frames + _SETTLING):
        picture = np.asarray(pictures[number % len(pictures)], np.uint8)[None]
        begun_ns = time.perf_counter_ns()
        model.predict(picture)
        took_ms.append((time.perf_counter_ns() - begun_ns) / 1e6)
    return took_ms[_SETTLING:]


def bare_hz(model: Model, pictures: Sequence[Pixels], frames: int) -> float:
    """Frames a second of direct calls, by as many threads as the model infers batches at a time, each so many frames."""
    with ThreadPoolExecutor(model.instances) as threads:
        loops = [threads.submit(bare, model, pictures, frames) for _ in range(model.instances)]
        took_ms = [each for loop in loops for each in loop.result()]
    return 1e3 * model.instances / float(np.mean(took_ms))


def played(
    plan: Plan, broker: str | None, folder: Path, *, window: int, sinks: Sequence[str] = (), flags: Sequence[str] = ()
) -> list[dict[str, str]]:
    """The rows of one run of the vehicle node, in a process of its own, without the settling frames.

    `broker`: None where `flags`, more of `skylane edge play` as a user would write them, lead past it.

    Raises:
        BenchError: it failed, or a frame was not answered.
    """
    arguments = [plan.bag, *(() if broker is None else ("--broker", broker)), "--model", plan.model]
    arguments += [
        "--codec",
        plan.codec,
        "--window",
        window,
        "--quality",
        plan.quality,
        "--closed-loop",
        "--out",
        folder,
        "--frames",
    ]
    arguments += [plan.frames + _SETTLING, "--loop"]
    arguments += [flag for sink in sinks for flag in ("--sink", sink)] if sinks else ["--no-sinks"]
    arguments += flags
    command = [sys.executable, "-P", "-m", "skylane", "edge", "play", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"the vehicle node failed: {done.stderr.strip() or done.stdout.strip()}")
    rows = list(read_rows(folder))
    unanswered = [row for row in rows if row["outcome"] != Outcome.ANSWERED]
    if unanswered:
        raise BenchError(f"{len(unanswered)} of {len(rows)} frames were not answered: {unanswered[0]['reason']}")
    return rows[_SETTLING:]


def _latency(rounds: Rounds, rows: Sequence[Mapping[str, str]]) -> None:
    rounds.remote_ms.append([float(row["total_ms"]) for row in rows])
    for part in PARTS:
        rounds.parts_ms.setdefault(str(part), []).extend(float(row[f"{part}_ms"]) for row in rows)
    rounds.vehicle_ms.extend(sum(float(row[f"{part}_ms"]) for part in _VEHICLE_PARTS) for row in rows)


def rate_hz(rows: Sequence[Mapping[str, str]]) -> float:
    """Answered frames a second between the first answer and the last."""
    answered = sorted(int(row["t_mask_decoded_ns"]) for row in rows)
    return (len(answered) - 1) * 1e9 / (answered[-1] - answered[0])


def _ratios(rounds: Rounds) -> dict[str, Any]:
    remote_ms = [value for part in rounds.remote_ms for value in part]
    bare_ms = [value for part in rounds.bare_ms for value in part]
    inferred_ms = rounds.parts_ms["inferred"]
    outside_ms = [total - inferred for total, inferred in zip(remote_ms, inferred_ms, strict=True)]
    by_round = [median(a) / median(b) for a, b in zip(rounds.remote_ms, rounds.bare_ms, strict=True)]
    rates = [a / b for a, b in zip(rounds.remote_hz, rounds.bare_hz, strict=True)]
    return {
        "overhead_ratio": median(remote_ms) / median(bare_ms),
        "throughput_ratio": sum(rounds.remote_hz) / sum(rounds.bare_hz),
        "samples": {"rounds": len(rates), "remote": len(remote_ms), "bare": len(bare_ms)},
        "spread": {
            "overhead_ratio_by_round": by_round,
            "throughput_ratio_by_round": rates,
            "remote_ms": spread(remote_ms),
            "bare_ms": spread(bare_ms),
            "remote_hz": rounds.remote_hz,
            "bare_hz": rounds.bare_hz,
        },
        "overhead_ms": spread(outside_ms),
        "vehicle_ms": spread(rounds.vehicle_ms),
        "breakdown_ms": {part: spread(values) for part, values in rounds.parts_ms.items()},
    }


def _result(plan: Plan, rounds: Rounds, broker: str, engine: str) -> dict[str, Any]:
    return {
        **_ratios(rounds),
        "model": plan.model,
        "codec": plan.codec,
        "quality": plan.quality if plan.codec == "jpeg" else None,
        "window": plan.window,
        "broker": broker,
        "engine": engine,
        "machine": machine(),
    }
