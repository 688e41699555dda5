"""The manifest of a model (`model.yaml`), which describes its file, inputs and outputs, and where a model runs."""

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from shared.config import Section, parsed_by
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize
from shared.imaging.labels import MAX_LABELS, Labels
from shared.messages.model_card import MAX_TRAINED_ON
from shared.messages.msgpack_reader import VERSION_NAME
from shared.messages.results import MAX_DETECTIONS
from shared.messages.tensors import MAX_TENSORS
from shared.network.endpoint import Endpoint
from shared.task import CONFIDENCE_HEAD, DEFAULT_TASK, TASKS, task_named


class Precision(StrEnum):
    """The number type of a model's weights and of its arithmetic."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    INT8 = "int8"


@dataclass(frozen=True, slots=True)
class Placement:
    """The device, thread counts and precision that a model runs with."""

    device: str = "auto"  # "auto" (a GPU if there is one), "cpu", "gpu" or "gpu:N".
    intra_threads: int = 0  # Threads within an operation; 0 lets the engine choose.
    inter_threads: int = 0  # Threads between operations; 0 lets the engine choose.
    instances: int | None = None  # Batches inferred at the same time; None lets the engine choose.
    precision: Precision | None = None  # None takes the manifest's.


MAX_SIDE = 16_384  # Pixels; a larger input is a mistake in the manifest.
NAME = r"^[A-Za-z0-9_-]{1,64}$"
SHA256 = r"^[0-9a-f]{64}$"
MANIFEST_NAME = "model.yaml"
COLOUR_LAYOUTS = (Layout.RGB8, Layout.BGR8)
# The usual ranges of images in training, as keys of the input.
NORMALIZATIONS: dict[str, dict[str, Any]] = {
    "0..255": {"scale": 1.0},
    "0..1": {"scale": 1 / 255},
    "-1..1": {"scale": 1 / 127.5, "mean": (1.0, 1.0, 1.0)},
    "imagenet": {"scale": 1 / 255, "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)},
}
REMOTE_FORMATS = ("open_inference", "tensorflow_serving")  # Protocols of remote model servers.

Colour = tuple[
    Annotated[int, Field(ge=0, le=255)], Annotated[int, Field(ge=0, le=255)], Annotated[int, Field(ge=0, le=255)]
]
Triple = tuple[float, float, float]
Version = Annotated[
    str,
    BeforeValidator(lambda given: str(given) if isinstance(given, (int, float)) else given),
    Field(pattern=VERSION_NAME),
]

MASK = "mask"  # The head of a segmentation.


def _known_task(name: str) -> str:
    if name not in TASKS:
        raise ValueError(f"{name[:40]!r} is no task: use {', '.join(TASKS.names())}")
    return name


TaskName = Annotated[str, AfterValidator(_known_task)]


class OutputKind(StrEnum):
    """The content of an output tensor."""

    CLASS_IDS = "class_ids"  # N×H×W or N×H×W×1: class ids.
    SCORES = "scores"  # N×H×W×C: scores per class; the highest wins, or the lowest id if equal.
    # N×C for images (before softmax), N×A×C for boxes (before the sigmoid); N×H×W×C for masks with one label more, whose
    # first one is where no channel is above 0.
    LOGITS = "logits"
    # Same shapes, in 0..1, of masks also the range of an integer type; limit: its half.
    PROBABILITIES = "probabilities"
    BOXES = "boxes"  # N×A×4, in `box_format`.
    CLASSES = "classes"  # N×A: the class of each box, of a detector that contains the suppression.
    COUNT = "count"  # N: the number of valid boxes.
    TENSOR = "tensor"  # Any shape with the batch first.


_CONFIDENCE_KINDS = (OutputKind.SCORES, OutputKind.PROBABILITIES)


class AxisOrder(StrEnum):
    """The order of the axes of an image or a map."""

    NHWC = "nhwc"
    NCHW = "nchw"


class QuantizationSection(Section):
    """The quantisation of a tensor, which holds `value / scale + zero_point`, rounded."""

    scale: float = Field(gt=0)
    zero_point: int = 0


ImageDtype = Literal["uint8", "int8", "int16", "int32", "float16", "float32"]


class InputSection(Section):
    """The input of the model. The engine scales it within the graph: `(pixel * scale - mean) / std`."""

    # The tensor of a frozen graph ("input:0"), the key of a SavedModel's signature, or the name of a Keras input.
    tensor: str = Field(min_length=1)
    dtype: ImageDtype = "uint8"
    axes: AxisOrder | None = None  # If the file does not show it.
    quantization: QuantizationSection | None = None  # Applied after the scaling.
    height: int = Field(ge=1, le=MAX_SIDE)
    width: int = Field(ge=1, le=MAX_SIDE)
    layout: Layout = Layout.RGB8
    resize: Resize = Resize.CROP
    scale: float = Field(default=1.0, gt=0)
    mean: Triple | None = None  # Per channel, after `scale`.
    std: Triple | None = None
    constants: dict[str, bool | int | float] = Field(default_factory=dict)  # Values of the other inputs.

    @field_validator("layout")
    @classmethod
    def _colour_only(cls, layout: Layout) -> Layout:
        if layout not in COLOUR_LAYOUTS:
            raise ValueError(f"{layout} is not a colour layout: use {' or '.join(COLOUR_LAYOUTS)}")
        return layout

    @model_validator(mode="after")
    def _scaling_needs_floats(self) -> Self:
        is_float, is_scaled = self.dtype.startswith("float"), self.scale != 1.0 or self.mean or self.std
        if self.quantization is None and not is_float and is_scaled:
            raise ValueError(f"scale, mean and std need a float dtype or quantization, not {self.dtype} alone")
        if self.quantization is None and self.dtype in ("int8", "int16"):
            raise ValueError(f"dtype {self.dtype} needs quantization: the scale and zero_point of the input")
        if self.quantization is not None and (is_float or self.dtype == "int32"):
            raise ValueError(f"quantization is for uint8, int8 and int16, not {self.dtype}: remove it")
        if self.std and not all(self.std):
            raise ValueError("std must not be 0")
        return self


class OutputSection(Section):
    """An output of the model."""

    tensor: str = Field(min_length=1)  # Same names as in the input; the output key of a SavedModel's signature.
    kind: OutputKind
    axes: AxisOrder | None = None  # Axis order of a segmentation's scores; by default the shape decides.


class BoxOrder(StrEnum):
    """The order of the four numbers of a box: two corners, or centre and size."""

    XYXY = "xyxy"
    YXYX = "yxyx"
    CXCYWH = "cxcywh"


class BoxFormatSection(Section):
    """The format of a detector's boxes."""

    order: BoxOrder = BoxOrder.XYXY
    normalised: bool = False  # Relative to the width and height of the input, in 0..1, not in pixels.


NoObject = Literal["first", "last"]


class DetectionSection(Section):
    """The selection of a detector's boxes."""

    score_threshold: float = Field(default=0.3, ge=0, le=1)
    # Boxes of one class that overlap more are reduced to the best one.
    iou_threshold: float = Field(default=0.5, ge=0, le=1)
    max_detections: int = Field(default=100, ge=1, le=MAX_DETECTIONS)
    first_class: int = Field(default=0, ge=0, le=MAX_LABELS)  # The number in `classes` that means the first label.
    no_object: NoObject | None = None  # The place of a class "no object" among scores, which a softmax includes.


class SourceSection(Section):
    """The model from which this one was converted."""

    model: str = Field(pattern=NAME)
    sha256: str = Field(pattern=SHA256)


class LabelSection(Section):
    """A class: its name and its colour (RGB)."""

    name: str = Field(min_length=1, max_length=64)
    colour: Colour


class RemoteSection(Section):
    """A model on another server, called over gRPC. Environment variables set TLS and a token (docs/guides/engines.md)."""

    address: Annotated[str, parsed_by(lambda text: str(Endpoint.parse(text)))]  # HOST:PORT
    model: str = Field(min_length=1, max_length=256)  # Its name on the server.
    version: Version | None = None  # None: chosen by the server.
    timeout_ms: float = Field(default=10_000, gt=0, le=600_000)  # Round trip of a batch.
    connect_timeout_s: float = Field(default=10, gt=0, le=600)  # Wait for the server when the model is loaded.


class BatchingSection(Section):
    """Limits of a batch."""

    max_size: int = Field(default=1, ge=1, le=256)


class WarmUpSection(Section):
    """Runs before the model is ready; the first ones are slow because they allocate memory and tune the engine."""

    runs: int = Field(default=3, ge=0, le=100)


class Manifest(Section):
    """`models/<name>/model.yaml`."""

    name: str | None = Field(default=None, pattern=NAME)  # If set, it must equal the name of the folder.
    version: Version = "1"
    description: str = ""
    task: TaskName = DEFAULT_TASK
    trained: bool = True
    trained_on: str = Field(default="", max_length=MAX_TRAINED_ON)  # The data of the training; empty if unknown.
    format: str  # One of shared.inference.table.formats.
    engine: str | None = None  # One of shared.inference.table.ENGINES, or auto; None: default of the format.
    precision: Precision = Precision.FP32  # Precision of the weights in the file and of the computation.
    converted_from: SourceSection | None = None
    agreement: float | None = Field(default=None, ge=0, le=1)  # With `converted_from`: share of equal labels.
    # Least agreement for `engine: auto` and `skylane model verify`.
    agreement_floor: float = Field(default=0.999, ge=0, le=1)
    file: str  # Relative to the manifest; the folder of a SavedModel; the manifest itself for a remote model.
    # shared.files.tree_sha256 of `file`; for a remote model the hash of the server's metadata, or empty for any.
    sha256: str = Field(pattern=f"{SHA256}|^$")
    remote: RemoteSection | None = None  # Required for REMOTE_FORMATS.
    signature: str = "serving_default"  # The signature of a SavedModel, local or remote.
    input: InputSection
    output: OutputSection | None = None  # The output of tasks with one output.
    # The outputs of other tasks by name.
    outputs: dict[str, OutputSection] = Field(default_factory=dict, max_length=MAX_TENSORS)
    # A segmentation's scores per class, N×h×w×C or N×C×h×w; a name alone means those before softmax.
    confidence: Annotated[
        OutputSection | None,
        BeforeValidator(lambda given: {"tensor": given, "kind": "scores"} if isinstance(given, str) else given),
    ] = None
    box_format: BoxFormatSection = BoxFormatSection()
    top_k: int = Field(default=5, ge=1, le=MAX_LABELS)  # Classes in the result of a classification.
    detection: DetectionSection = DetectionSection()
    labels: tuple[LabelSection, ...] = Field(default=(), max_length=MAX_LABELS)  # The index is the class id.
    labels_file: str | None = None  # Alternative to `labels`: a file in the repository, relative to the manifest.
    batching: BatchingSection = BatchingSection()
    warm_up: WarmUpSection = WarmUpSection()

    @model_validator(mode="before")
    @classmethod
    def _remote_has_no_file(cls, given: Any) -> Any:
        """Sets the file of a remote model, which has only a manifest here."""
        if isinstance(given, dict) and given.get("remote") is not None:
            return {"file": MANIFEST_NAME, "sha256": "", **given}
        return given

    @model_validator(mode="after")
    def _remote_fits_format(self) -> Self:
        if (self.format in REMOTE_FORMATS) != (self.remote is not None):
            raise ValueError(
                f"format {self.format}: remote, {{address, model}}, is for {' or '.join(REMOTE_FORMATS)} only"
            )
        if self.remote is not None and self.file != MANIFEST_NAME:
            raise ValueError("a remote model has no local file: remove file or remote")
        if self.remote is None and not self.sha256:
            raise ValueError("sha256 is empty: write the manifest with `skylane model inspect`")
        return self

    @model_validator(mode="after")
    def _labels_once(self) -> Self:
        if not task_named(self.task).labels[0] and not self.labels and self.labels_file is None:
            return self
        if bool(self.labels) == (self.labels_file is not None):
            raise ValueError("give either labels, a list of {name, colour}, or labels_file")
        names = [label.name for label in self.labels]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"labels: {repeated[0]!r} is the name of several classes: rename all but one")
        return self

    @model_validator(mode="after")
    def _outputs_fit_task(self) -> Self:
        task = task_named(self.task)
        heads, optional = task.heads, task.optional_heads
        if len(heads) == 1 and (self.output is None or self.outputs):
            raise ValueError(f"a {self.task} model has one output: give output, {{tensor, kind}}, and no outputs")
        if len(heads) != 1 and (self.output is not None or not self.outputs):
            raise ValueError(f"give outputs, a map of {{tensor, kind}} by name, and no output: task {self.task}")
        if heads and not set(heads) <= set(self.heads) <= {*heads, *optional}:
            maybe = f", if needed {', '.join(optional)}" if optional else ""
            given = ", ".join(self.outputs)
            raise ValueError(f"the outputs of a {self.task} are {', '.join(heads)}{maybe}, not {given}")
        for name, section in self.heads.items():
            if not heads and not re.fullmatch(NAME, name):
                raise ValueError(f"outputs: {name[:80]!r} is not a valid name: use 1 to 64 of A-Z a-z 0-9 _ -")
            kinds = {**heads, **optional}[name].kinds if heads else (OutputKind.TENSOR,)
            if section.kind not in kinds:
                raise ValueError(f"output {name}: kind {section.kind} is not for {self.task}: use {' or '.join(kinds)}")
            if section.axes is not None and name != MASK:
                raise ValueError(
                    f"output {name}: axes is a key of a segmentation's output, not of {self.task}: remove it"
                )
        if self.confidence is not None and MASK not in heads:
            raise ValueError(f"confidence is the key of a segmentation, not of {self.task}: remove it")
        if self.confidence is not None and self.confidence.kind not in _CONFIDENCE_KINDS:
            raise ValueError(f"confidence.kind is {self.confidence.kind}: use {' or '.join(_CONFIDENCE_KINDS)}")
        return self

    @property
    def heads(self) -> dict[str, OutputSection]:
        """The outputs by name: `output` under the name of the task's one output, such as `mask`, otherwise `outputs`."""
        return {next(iter(task_named(self.task).heads)): self.output} if self.output else dict(self.outputs)

    @property
    def has_boxes(self) -> bool:
        """True if the scores belong to boxes, not to the whole image."""
        return any(section.kind is OutputKind.BOXES for section in self.outputs.values())

    def with_score_threshold(self, score: float) -> Self:
        """Returns a copy with another lowest score of a reported box."""
        return self.model_copy(update={"detection": self.detection.model_copy(update={"score_threshold": score})})

    def with_confidence_head(self) -> Self:
        """Returns a copy with a second head `confidence`, N×h×w×C scores before softmax; itself if the model has none."""
        if self.confidence is None:
            return self
        axes = self.confidence.axes or (self.output.axes if self.output else None)
        scores = self.confidence.model_copy(update={"axes": axes})
        return self.model_copy(update={"output": None, "outputs": {**self.heads, CONFIDENCE_HEAD: scores}})

    def with_labels(self, labels: Labels) -> Self:
        """Returns a copy with other labels."""
        named = tuple(
            LabelSection(name=name, colour=colour) for name, colour in zip(labels.names, labels.colours, strict=True)
        )
        return self.model_copy(update={"labels": named, "labels_file": None})

    @field_validator("file")
    @classmethod
    def _stays_inside(cls, file: str) -> str:
        path = PurePosixPath(file)
        if not file or path.is_absolute() or ".." in path.parts:
            raise ValueError(f"{file!r} must be a path inside the model's folder")
        return file

    @property
    def _unused_keys(self) -> list[str]:
        """The keys without a meaning for this task and format."""
        readers = {
            "signature": self.format in ("saved_model", "tensorflow_serving"),
            "file": self.remote is None,
            **{key: key in task_named(self.task).settings for key in ("top_k", "box_format", "detection")},
        }
        return [key for key, is_read in readers.items() if not is_read]

    def to_yaml(self) -> str:
        """Returns the text of `model.yaml` with all defaults, but without empty values and unused keys."""
        document = self.model_dump(mode="json", exclude_none=True)
        document["input"] = {key: value for key, value in document["input"].items() if value != {}}
        document = {key: value for key, value in document.items() if value not in ("", [], {})}
        for key in self._unused_keys:
            del document[key]
        return yaml.safe_dump(document, sort_keys=False, default_flow_style=None, allow_unicode=True, width=100)
