"""`python -m bench baselines`: compares Skylane with reproductions of the systems it follows, in alternating rounds.

The overhead is compared: the time from a frame read to its decoded mask, without the inference, which takes the same time in
both. One frame is in flight, because the first system cannot tell to which frame a reply belongs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench import harness
from bench.baselines.first_system_mqtt import MqttBaseline, stopwatch_ms
from bench.baselines.gateway_baselines import SCORES, export_scores_model
from bench.baselines.images import compare_mask, fit
from bench.baselines.noscope_comparison import noscope
from bench.harness import (
    OVERHEAD,
    BenchRun,
    Samples,
    compare,
    frame_samples,
    overhead_record,
    rounds_text,
    row_samples,
    span,
)
from bench.tensorflow_variants import VARIANTS, open_variant
from cloud.models.loader import ModelLoader
from ops.processes.child import Child, cli_flags
from ops.processes.deployment import GRPC_TRANSPORTS, Deployment
from ops.processes.playback import WARM_UP_FRAMES, PlaybackSettings, model_inputs
from shared.imaging.opencv import cv2
from shared.inference.model import Model
from shared.models.repository import Repository
from shared.terminal_table import Table, result_table

# Sends a frame by its number; returns its `total`, `inferred` and other durations in milliseconds.
Send = Callable[[int], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class TransportCodec:
    """The transport and the codec with which Skylane's vehicle sends the frames."""

    transport: str  # One of `edge.transports.transport.TRANSPORTS`.
    codec: str = "jpeg"

    def __str__(self) -> str:
        return f"{self.transport}, {self.codec}"


@dataclass(frozen=True, slots=True)
class Baseline:
    """A reproduced system."""

    title: str
    against: tuple[TransportCodec, ...]  # First those that carry the same pixels; JPEG changes them.
    target: float | None  # Skylane's overhead divided by the baseline's; None: no target.

    def verdict(self, ratio: float, by_round: Sequence[float]) -> str:
        """The verdict on the target; empty without one."""
        if self.target is None:
            return ""
        return f"≤ {self.target:g}, {rounds_text(ratio <= self.target, self.target, by_round)}"


BASELINES = {
    "mqtt": Baseline("first system, MQTT", (TransportCodec("mqtt"),), 0.5),
    "grpc": Baseline(
        "first system, TensorFlow Serving's gRPC",
        (TransportCodec("grpc", "raw"), TransportCodec("tfs-grpc", "raw"), TransportCodec("grpc")),
        0.1,
    ),
    "rest": Baseline(
        "first system, TensorFlow Serving's REST",
        (TransportCodec("oip-rest", "raw"), TransportCodec("tfs-rest", "raw"), TransportCodec("tfs-rest")),
        0.1,
    ),
    SCORES: Baseline(
        "first system, TensorFlow Serving's gRPC, a model of scores",
        (TransportCodec("grpc"), TransportCodec("tfs-grpc")),
        0.1,
    ),
    "detect": Baseline("fifth system, upload after upload", (TransportCodec("oip-rest"), TransportCodec("grpc")), None),
}
FOR_ANY_MODEL = tuple(name for name in BASELINES if name != SCORES)
_MAX_SCORES_BYTES = 1 << 28  # More than twenty 32-bit scores for each of 1024×2048 pixels.
_MIN_PART_MS = 0.5  # Smaller parts of the overhead are not listed.
_NOT_PARTS = ("total", "inferred", "in_callback", "in_lists", "bytes_up", "bytes_down")
_STOPWATCH_NOTE = (
    "origin of “post-processing takes 90 %”: the first system takes the time when TensorFlow's call returns. On a GPU that is "
    "before the work is done; on this CPU, TensorFlow's asynchronous execution shows the same effect:"
)


@dataclass(frozen=True, slots=True)
class BaselinePlan:
    """Settings of the comparison."""

    bag: Path = harness.bag()
    models: Path = harness.models()
    model: str = harness.model()
    baselines: tuple[str, ...] = harness.choices(
        BASELINES,
        FOR_ANY_MODEL,
        "Baseline to measure (repeatable); scores needs --model street-lite. [all but scores]",
        "--baseline",
    )
    frames: int = harness.frames(20, 2)
    rounds: int = harness.rounds(3)
    compared_masks: int = 5  # Number of frames whose masks are compared.

    @property
    def transports(self) -> tuple[TransportCodec, ...]:
        """The transports and codecs of Skylane that are measured, each once."""
        return tuple(dict.fromkeys(each for name in self.baselines for each in BASELINES[name].against))

    def playback(self, codec: str = "jpeg") -> PlaybackSettings:
        """The frames of a round of Skylane's vehicle node."""
        return PlaybackSettings(self.bag, self.models, self.model, codec, frames=self.frames)


def measure(plan: BaselinePlan, run: BenchRun) -> dict[str, Any]:
    """Compare with reproductions of the systems that Skylane follows: same frames, model and machine, in turn."""
    run.step("starting the worker and the baselines")
    model = run.enter_context(ModelLoader(Repository(plan.models)).open(plan.model))
    deployment = run.enter_context(
        Deployment(
            models=plan.models,
            model=plan.model,
            transports=[each.transport for each in plan.transports],
            flags=cli_flags(engine=model.engine_name),
        )
    )
    first = MqttBaseline(run, plan.playback()) if "mqtt" in plan.baselines else None
    senders = {
        name: first.send if name == "mqtt" and first else _open_sender(run, name, plan.playback(), deployment)
        for name in BASELINES
        if name in plan.baselines
    }
    titles = {name: f"reproduction: {BASELINES[name].title}" for name in senders}
    candidates = {titles[name]: partial(_send, send, plan) for name, send in senders.items()}
    candidates |= {str(each): partial(_play, deployment, plan, each, run.folder) for each in plan.transports}
    comparison = compare(candidates, plan.rounds, run.step)
    run.step("comparing masks")
    return {
        "baselines": {name: overhead_record(comparison, title) for name, title in titles.items()},
        "skylane": {str(each): overhead_record(comparison, str(each)) for each in plan.transports},
        "ratios": [
            {
                "baseline": name,
                "transport": str(each),
                "target": BASELINES[name].target,
                **comparison.ratio(str(each), title, OVERHEAD).record(),
            }
            for name, title in titles.items()
            for each in BASELINES[name].against
        ],
        "masks": {
            "skylane_same": {
                str(each): _equal_share(plan, model, deployment, each, run.folder) for each in plan.transports
            },
            "first_system": _compare_first_system(plan, first, run.folder) if first is not None else None,
        },
        "stopwatch": stopwatch_ms(plan.models, plan.model) if first is not None else {},
        "model": plan.model,
        "frames": plan.frames,
        "rounds": plan.rounds,
        "engine": model.describe(),
        "broker": deployment.broker.description,
    }


def _open_sender(run: BenchRun, name: str, settings: PlaybackSettings, deployment: Deployment) -> Send:
    """Starts a baseline other than `mqtt`; its processes end with `run`.

    Raises:
        BenchError: the baseline is `scores`, and the model has no scores.
    """
    models, output = settings.models, "mask"
    if name == SCORES:
        output = SCORES
        models = export_scores_model(models, settings.model, run.folder / "scores-model")
        flags = ("--max-message-bytes", str(_MAX_SCORES_BYTES))
        deployment = run.enter_context(
            Deployment(models=models, model=settings.model, transports=GRPC_TRANSPORTS, flags=flags)
        )
    protocol = "grpc" if name == SCORES else name
    sender = {
        "protocol": protocol,
        "address": deployment.grpc if protocol == "grpc" else deployment.http,
        "models": models,
        "model": settings.model,
        "output": output,
        "bag": settings.bag,
        "count": settings.frames,
    }
    child = run.enter_context(Child("bench.baselines.gateway_baselines", sender))
    child.wait()
    return lambda frame: child.ask({"frame": frame})


def _send(send: Send, plan: BaselinePlan, _round: int) -> Samples:
    """One round of a baseline."""
    return frame_samples([send(frame) for frame in range(plan.frames + WARM_UP_FRAMES)][WARM_UP_FRAMES:])


def _play(deployment: Deployment, plan: BaselinePlan, each: TransportCodec, folder: Path, number: int) -> Samples:
    """One round of Skylane."""
    rows = deployment.play(plan.playback(each.codec), each.transport, folder / f"{each}-{number}")
    return row_samples(rows)


def _equal_share(plan: BaselinePlan, model: Model, deployment: Deployment, each: TransportCodec, folder: Path) -> float:
    """The share of the pixels of Skylane's masks that equal those of a direct call, 0 to 1."""
    settings, run = plan.playback(each.codec), folder / f"masks-{each}"
    images = model_inputs(settings, model)
    deployment.play(settings, each.transport, run, sinks=("png",))
    shares = []
    for file in sorted((run / "masks").rglob("*.png"))[: plan.compared_masks]:
        mask = cv2.imread(str(file), cv2.IMREAD_GRAYSCALE)
        expected = model.predict(np.asarray(images[int(file.stem) % len(images)], np.uint8)[None])[0]
        shares.append(float(np.mean(mask == expected)))
    return float(np.mean(shares))


def _compare_first_system(plan: BaselinePlan, first: MqttBaseline, folder: Path) -> dict[str, float]:
    """Compares the images that the first system returns with the masks of the same call on the same JPEG images."""
    card = Repository(plan.models).find(plan.model).card()
    run = open_variant(VARIANTS["Session.run"], plan.models, plan.model)
    shares = []
    for frame in range(plan.compared_masks):
        first.send(frame, folder)
        sent = cv2.imread(str(folder / f"sent-{frame}.jpg"), cv2.IMREAD_COLOR_RGB)
        mask = run(fit(np.asarray(sent, np.uint8), card.height, card.width)[None])[0]
        returned = (folder / f"returned-{frame}.jpg").read_bytes()
        shares.append(compare_mask(returned, mask.astype(np.uint8), card.labels))
    return {
        "exact": float(np.mean([share.exact for share in shares])),
        "nearest": float(np.mean([share.nearest for share in shares])),
        "frames": len(shares),
    }


def _tables(result: Mapping[str, Any]) -> Iterator[Table | str]:
    records = {f"reproduction: {BASELINES[name].title}": record for name, record in result["baselines"].items()}
    records |= {f"Skylane, {name}": record for name, record in result["skylane"].items()}
    percentiles = ("min", "median", "p95")
    yield result_table(
        f"Overhead, ms: a frame's round trip without its inference; {result['model']}, one in flight",
        {"system": "<", "n": "", **dict.fromkeys(percentiles, ".1f"), "inference": ".0f", "of the overhead": "<"},
        [
            (
                name,
                record["n"],
                *(record["overhead_ms"][key] for key in percentiles),
                record["parts"]["inferred"],
                ", ".join(
                    f"{part} {duration_ms:.1f}"
                    for part, duration_ms in record["parts"].items()
                    if part not in _NOT_PARTS and duration_ms >= _MIN_PART_MS
                ),
            )
            for name, record in records.items()
        ],
        "Reproductions of a method, written for this comparison; the original code was not run.",
    )
    rows = []
    for each in result["ratios"]:
        baseline, ratio, by_round = BASELINES[each["baseline"]], each["ratio"], each["by_round"]
        rows.append((baseline.title, each["transport"], ratio, span(by_round), baseline.verdict(ratio, by_round)))
    yield result_table(
        f"Skylane's overhead ÷ the reproduction's, medians, {result['rounds']} rounds in turn",
        {"reproduction": "<", "Skylane by": "<", "ratio": ".3f", "by round": "", "target": ""},
        rows,
    )
    yield from _mask_lines(result["masks"])
    yield from _stopwatch_lines(result["stopwatch"])
    yield from _overhead_lines(result["baselines"])


def _mask_lines(masks: Mapping[str, Any]) -> Iterator[str]:
    shares = "; ".join(f"{name}: {share:.6%}" for name, share in masks["skylane_same"].items())
    yield f"pixels of Skylane's masks that equal those of the direct call: {shares}"
    first = masks["first_system"]
    if first is not None:
        yield (
            f"pixels of the first system's masks after their return as coloured JPEG, {first['frames']} frames: "
            f"{first['exact']:.1%} have exactly the colour of their class, {first['nearest']:.2%} are nearest to it"
        )


def _stopwatch_lines(stopwatch: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    if stopwatch:
        yield _STOPWATCH_NOTE
    for name, parts in stopwatch.items():
        share = parts["postprocessing"] / sum(parts.values())
        yield (
            f"  {name}: prediction {parts['prediction']:.1f} ms, post-processing {parts['postprocessing']:.1f} ms "
            f"({share:.0%} of both)"
        )


def _overhead_lines(records: Mapping[str, Any]) -> Iterator[str]:
    """Explains the largest parts of the reproductions' overhead."""
    for name, record in records.items():
        title, parts, overhead_ms = BASELINES[name].title, record["parts"], record["overhead_ms"]["median"]
        if "in_lists" in parts:
            yield (
                f"{title}: the vehicle spends {parts['in_lists']:.0f} of {overhead_ms:.0f} ms "
                f"({parts['in_lists'] / overhead_ms:.0%}) on conversions to Python lists and messages, and back"
            )
        if "in_callback" in parts:
            yield (
                f"{title}: {parts['in_callback']:.0f} ms per frame in the callback, during which nothing else is received "
                f"or sent; {parts['bytes_up'] / 1e3:.0f} KB up, {parts['bytes_down'] / 1e3:.0f} KB down"
            )


_command = harness.bench_command("baselines", BaselinePlan, measure, _tables)


@click.pass_context
def _compare_unless_subcommand(context: click.Context, /, **settings: Any) -> None:
    if context.invoked_subcommand is None:
        assert _command.callback is not None
        _command.callback(**settings)


baselines = click.Group(
    "baselines",
    callback=_compare_unless_subcommand,
    params=_command.params,
    help=_command.help,
    invoke_without_command=True,
    commands=[noscope],
)
