"""`python -m bench codecs`: what the codec of the frames costs a model in accuracy, beside bytes and time.

Each frame is prepared, encoded and decoded as vehicle and worker do it, once per codec and quality. The model's results are
compared with the true labels of the drive, and with its own results for the raw frames.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice, takewhile
from pathlib import Path
from statistics import fmean
from time import perf_counter_ns, process_time_ns
from typing import Any

import click
import numpy as np

from analysis.report.chapters.traces import axis, line
from analysis.report.content import Chart
from analysis.report.output.charts import write_figures
from analysis.report.stage_styles import SERIES
from analysis.statistics.description import IntervalEstimate, describe
from analysis.statistics.streaming_accuracy import accuracy_interval, margin_interval
from bench import harness
from bench.freshness.freshness_bench import estimate_record
from bench.harness import BenchRun
from cloud.models.engine_benchmark import turns
from cloud.models.loader import ModelLoader
from edge.config import EdgeConfig
from edge.pipeline import colour_image
from edge.sources.source import kind_of, open_source
from modelling.evaluation.bag_images import EvaluationError, LabelledImages, check_given_once
from modelling.evaluation.class_map import ClassMap, class_map
from modelling.evaluation.streaming import Mask, StreamingScores
from ops.processes.child import BenchError
from rosbag_tools.drive.recording import sample_bag
from shared.flags import EXISTING_FILE, WholeRange
from shared.imaging import geometry, image_codecs
from shared.imaging.bayer import ColourImage
from shared.imaging.frames import Frame, Layout
from shared.imaging.geometry import UNSEEN, to_source
from shared.imaging.image_codecs import IMAGE_CODECS, MAX_QUALITY, ImageLimits
from shared.inference.model import Model, agreement, warmup_images
from shared.models.repository import Repository
from shared.runlog.presented_log import OutputOrigin
from shared.runtime.machine import commit
from shared.terminal_table import Table, result_table

_RAW = "raw"
_QUALITIES = (95, 90, 85, 75, 60, 40, 20)


@dataclass(frozen=True, slots=True)
class CodecPlan:
    """Settings of the comparison."""

    drives: tuple[Path, ...] = harness.option(
        (),
        flag="--drive",
        multiple=True,
        type=harness.EXISTING_PATH,
        help="Recording of one drive: a bag, a video or a folder of images (repeatable). [a synthetic drive]",
    )
    models: Path = harness.models()
    model: str = harness.model()
    map_file: Path | None = harness.option(
        flag="--map", type=EXISTING_FILE, help="Map file of the model's classes to those of the labels. [by name]"
    )
    frames: int = harness.frames(100, 1, "Maximum number of frames per drive.")
    codecs: tuple[str, ...] = harness.choices(
        IMAGE_CODECS, (*IMAGE_CODECS,), "Codec to compare with raw frames (repeatable). [all]", "--codec"
    )
    qualities: tuple[int, ...] = harness.option(
        _QUALITIES,
        flag="--quality",
        multiple=True,
        type=WholeRange(1, MAX_QUALITY),
        help=f"Quality of the codecs that have one (repeatable). [{', '.join(str(each) for each in _QUALITIES)}]",
    )
    figures: Path | None = harness.option(
        type=click.Path(file_okay=False, path_type=Path), help="Folder for the chart, as SVG and PNG; needs Chromium."
    )


@dataclass(slots=True)
class _Candidate:
    """A codec with a quality, and what it did to the frames."""

    codec: str
    quality: int | None  # None for a codec that does not depend on it.
    scores: StreamingScores  # Without ticks if there are no true labels.
    sizes: list[int] = field(default_factory=list)
    times_ns: list[tuple[int, int, int]] = field(default_factory=list)  # Encoding, decoding, processor time of both.
    agreements: list[float] = field(default_factory=list)
    is_lossless: bool = True

    def transmit(self, image: ColourImage, layout: Layout) -> ColourImage:
        """Encodes an image and returns it as it is decoded."""
        used_ns, begin_ns = process_time_ns(), perf_counter_ns()
        data = image_codecs.encode(image, layout, self.codec, self.quality or MAX_QUALITY)
        encoded_ns = perf_counter_ns()
        received = image_codecs.decode(data, self.codec, layout, image.shape, ImageLimits(), layout)
        decoded_ns = perf_counter_ns()
        self.times_ns.append((encoded_ns - begin_ns, decoded_ns - encoded_ns, process_time_ns() - used_ns))
        self.sizes.append(len(data))
        self.is_lossless &= np.array_equal(received, image)
        return np.asarray(received, np.uint8)

    def record(self, raw: StreamingScores) -> dict[str, Any]:
        """Describes the candidate for JSON output; `raw` are the scores of the raw frames."""
        same = describe(self.agreements).mean
        accuracy, change = None, IntervalEstimate(same.value - 1, same.low - 1, same.high - 1)
        if self.scores.ticks:
            accuracy, change = accuracy_interval(self.scores), margin_interval(self.scores, raw)
        return {
            "codec": self.codec,
            "quality": self.quality,
            "is_lossless": self.is_lossless,
            "bytes": round(fmean(self.sizes)),
            **dict(
                zip(("encode_ms", "decode_ms", "processor_ms"), np.median(self.times_ns, axis=0) / 1e6, strict=True)
            ),
            "agreement": estimate_record(same),
            "mean_iou": None if accuracy is None else estimate_record(accuracy),
            "change": estimate_record(change),  # Of the mean IoU, or without true labels of the agreement.
        }


def measure(plan: CodecPlan, run: BenchRun) -> dict[str, Any]:
    """Compare codecs of frames: accuracy against the drives' true labels, agreement with raw frames, bytes and time.

    Agreement is the share of labels that are those of the raw frames. Without true labels, and for a model that is no
    segmentation, it is all that is known.
    """
    drives = plan.drives or (sample_bag(plan.frames),)
    check_given_once(drives)
    with ModelLoader(Repository(plan.models)).open(plan.model) as model:
        truths = [_truth(path, model, plan.frames) for path in drives]
        classes = _compared_classes(model, truths, plan.map_file)
        candidates = _candidates(plan, model, () if classes is None else classes.names)
        for path, truth in zip(drives, truths, strict=True):
            for number, (frame, labels) in enumerate(_frames(path, truth, plan.frames)):
                run.step(f"{path.name}: frame {number + 1}")
                colour, size = colour_image(frame, model.card, EdgeConfig())
                image = geometry.apply(colour, size)
                received = {id(each): each.transmit(image, model.card.layout) for each in turns(candidates, number)}
                raw = model.infer(image[np.newaxis])
                for each in candidates:
                    outputs = raw if each.is_lossless else model.infer(received[id(each)][np.newaxis])
                    each.agreements.append(agreement(model.manifest, raw, outputs))
                    if classes is not None and labels is not None:
                        mask = classes.of_network(to_source(outputs["mask"][0], size, UNSEEN))
                        true = classes.of_truth(labels)
                        each.scores.add(true, mask, origin=OutputOrigin.REMOTE, age_ns=0, drive=str(path))
        return {
            "model": {"name": model.card.name, "version": model.card.version, "sha256": model.card.sha256},
            "input": [model.card.height, model.card.width],
            "drives": [path.name for path in drives],
            "frames": len(candidates[0].sizes),
            "classes": None if classes is None else {"compared": classes.compared, "note": classes.describe()},
            "codecs": [each.record(candidates[0].scores) for each in candidates],
            "figures": plan.figures and str(plan.figures),
            "commit": commit(),
        }


def _truth(path: Path, model: Model, frames: int) -> LabelledImages | None:
    """Returns the labelled images of a bag; None for a model or a recording without true labels."""
    if model.card.task != "segmentation" or kind_of(str(path)) != "bag":
        return None
    try:
        return LabelledImages(path, frames=frames)
    except EvaluationError:
        return None


def _compared_classes(model: Model, truths: Sequence[LabelledImages | None], file: Path | None) -> ClassMap | None:
    """Returns the classes that are compared on all drives; None without true labels.

    Raises:
        SkylaneError: the drives differ in their labels, or nothing can be compared.
    """
    named = {None if truth is None else (truth.names,) for truth in truths}
    if len(named) > 1:
        raise BenchError("--drive: only some drives have true labels, or of other classes: measure these on their own")
    (found,) = named
    if found is not None:
        return class_map(model.card.labels.names, found[0], file)
    if file is not None:
        raise BenchError("--map: there are no true labels of a segmentation to compare with: leave it out")
    return None


def _candidates(plan: CodecPlan, model: Model, names: Sequence[str]) -> list[_Candidate]:
    """Returns the codecs to compare, raw frames first; one that depends on the quality once per quality."""
    sample, found = warmup_images(model.card.height, model.card.width, 1)[0], []
    for codec in dict.fromkeys((_RAW, *plan.codecs)):
        low, high = (image_codecs.encode(sample, model.card.layout, codec, quality) for quality in (1, MAX_QUALITY))
        qualities = (None,) if low == high else sorted(set(plan.qualities), reverse=True)
        found += [_Candidate(codec, quality, StreamingScores(names)) for quality in qualities]
    return found


def _frames(path: Path, truth: LabelledImages | None, count: int) -> Iterator[tuple[Frame, Mask | None]]:
    """Yields the frames of a recording, with their true labels if it has any.

    Raises:
        SkylaneError: it cannot be read, or has no readable frame.
    """
    if truth is not None:
        for pixels, layout, stamp_ns, labels in truth:
            yield Frame(pixels, layout, truth.camera, 0, stamp_ns, stamp_ns, 0), labels.astype(np.uint8, copy=False)
        return
    has_frames = False
    with closing(open_source(str(path))) as source:
        for frame in islice((each for each in source.frames() if isinstance(each, Frame)), count):
            has_frames = True
            yield frame, None
    if not has_frames:
        raise BenchError(f"{path} has no readable frame: give another recording")


def tables(result: Mapping[str, Any]) -> Iterator[Table | str]:
    """Yields the table and the lines of a result, and writes its chart if that was asked for."""
    measured, has_truth = result["codecs"], result["classes"] is not None
    accuracy = {"mean IoU": "", "− raw, points": ""} if has_truth else {}
    rows = []
    for each in measured:
        scores = (_text(each["mean_iou"], 1, ".3f"), _text(each["change"], 100, "+.1f")) if has_truth else ()
        times = (each["encode_ms"], each["decode_ms"], each["processor_ms"])
        rows.append((title(each), each["bytes"] / 1e3, *scores, _text(each["agreement"], 100, ".1f"), *times))
    columns = {"codec": "<", "kB": ".1f", **accuracy, "as raw, %": ""}
    yield result_table(
        f"{result['model']['name']}, input {'×'.join(map(str, result['input'][::-1]))}, {result['frames']} frames",
        {**columns, "encode ms": ".2f", "decode ms": ".2f", "CPU ms": ".2f"},
        rows,
    )
    yield "kB: mean size of a frame. As raw: labels that are those of raw frames. Times: medians; CPU: of both."
    yield "95 % intervals over drives, or over blocks of frames of a single drive; differences are paired."
    if has_truth:
        cheapest = cheapest_without_loss(measured)
        yield f"Smallest frames before a loss that the intervals show: {title(cheapest)}, {cheapest['bytes'] / 1e3:.1f} kB"
        yield result["classes"]["note"] or f"Classes compared: {', '.join(result['classes']['compared'])}."
    else:
        yield "There are no true labels of a segmentation: nothing here says how often the model is right."
    if result["figures"]:
        folder = Path(result["figures"])
        folder.mkdir(parents=True, exist_ok=True)
        yield from map(str, write_figures([chart("codecs", {result["model"]["name"]: result})], folder))


def cheapest_without_loss(measured: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Returns the codec with the smallest frames before, from large to small, the first whose interval shows a loss."""
    by_size = sorted(measured, key=lambda each: each["bytes"], reverse=True)
    return list(takewhile(lambda each: (each["change"]["high"] or 0.0) >= 0, by_size))[-1]


def title(measured: Mapping[str, Any]) -> str:
    """Returns the name of a codec and its quality."""
    return " ".join(str(measured[key]) for key in ("codec", "quality") if measured[key] is not None)


def chart(name: str, results: Mapping[str, Mapping[str, Any]]) -> Chart:
    """Shows what each codec costs against raw frames, by the size of a frame; `results` are those of the bench by title."""
    traces: list[dict[str, Any]] = []
    for colour, (label, result) in zip(SERIES, results.items(), strict=False):
        by_size = sorted(result["codecs"], key=lambda each: each["bytes"])
        smallest_lossless = next(each for each in by_size if each["is_lossless"])
        shown = [*(each for each in by_size if not each["is_lossless"]), smallest_lossless]
        x, y = [each["bytes"] / 1e3 for each in shown], [100 * each["change"]["value"] for each in shown]
        ends = {
            key: [100 * abs((each["change"][end] or 0.0) - each["change"]["value"]) for each in shown]
            for key, end in (("array", "high"), ("arrayminus", "low"))
        }
        errors = {"type": "data", "symmetric": False, "thickness": 1, "width": 4, **ends}
        trace = line(label, x, y, {"color": colour}, error_y=errors, marker={"size": 7})
        texts = [title(each) if each["is_lossless"] else str(each["quality"]) for each in shown]
        traces.append(
            {
                **trace,
                "mode": "lines+markers+text",
                "text": texts,
                "textposition": "top right" if traces else "bottom right",
            }
        )
    layout = {
        "xaxis": axis("kB of a frame (logarithmic); at the points the quality of JPEG", type="log", dtick="D2"),
        "yaxis": axis("change against raw frames, points"),
    }
    return Chart(name, "What a codec costs against raw frames, by the size of a frame", tuple(traces), layout)


def _text(estimate: Mapping[str, float | None], factor: float, spec: str) -> str:
    value, low, high = (None if each is None else factor * each for each in estimate.values())
    return f"{value:{spec}}" + ("" if low is None or high is None else f"\n{low:{spec}} to {high:{spec}}")


codecs = harness.bench_command("codecs", CodecPlan, measure, tables)
