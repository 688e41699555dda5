"""A model's manifest: `model.yaml`, which says what lies in a model's folder and how to feed and read it."""

import re
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple, Self

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from cloud.engines.engine import Precision
from shared.config import Section
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize
from shared.imaging.labels import MAX_LABELS, Labels
from shared.messages.model_card import VERSION_NAME, Task
from shared.messages.results import MAX_DETECTIONS
from shared.messages.tensors import MAX_TENSORS
from shared.network.endpoint import Endpoint, EndpointError

MAX_SIDE = 16_384  # Pixels; a larger input is a mistake in the manifest.
NAME = r"^[A-Za-z0-9_-]{1,64}$"
SHA256 = r"^[0-9a-f]{64}$"
MANIFEST_NAME = "model.yaml"
REMOTE_FORMATS = ("open_inference", "tensorflow_serving")  # What a server speaks that has the model.

Colour = tuple[
    Annotated[int, Field(ge=0, le=255)], Annotated[int, Field(ge=0, le=255)], Annotated[int, Field(ge=0, le=255)]
]
Triple = tuple[float, float, float]
Version = Annotated[
    str,
    BeforeValidator(lambda given: str(given) if isinstance(given, (int, float)) else given),
    Field(pattern=VERSION_NAME),
]


class OutputKind(StrEnum):
    """What an output tensor holds."""

    CLASS_IDS = "class_ids"  # N×H×W or N×H×W×1: the class's number.
    SCORES = "scores"  # N×H×W×C: a score a class; the highest wins, the lowest id where two are equal.
    LOGITS = "logits"  # N×C of a picture, N×A×C of boxes: what softmax, or for boxes the sigmoid, makes probabilities.
    PROBABILITIES = "probabilities"  # The same, in 0..1.
    BOXES = "boxes"  # N×A×4, as `box_format` says.
    TENSOR = "tensor"  # Anything with the batch first.


class InputSection(Section):
    """What the model is fed. Scaling happens in the graph: `(pixel * scale - mean) / std`."""

    tensor: str = Field(
        min_length=1
    )  # Frozen graph: "input:0". SavedModel: the signature's key. Keras: the input's name.
    dtype: Literal["uint8", "int32", "float16", "float32"] = "uint8"
    height: int = Field(ge=1, le=MAX_SIDE)
    width: int = Field(ge=1, le=MAX_SIDE)
    layout: Layout = Layout.RGB8
    resize: Resize = Resize.CROP
    scale: float = Field(default=1.0, gt=0)
    mean: Triple | None = None  # In the order of the channels, after `scale`.
    std: Triple | None = None
    constants: dict[str, bool | int | float] = Field(default_factory=dict)  # Other placeholders and what to feed them.

    @field_validator("layout")
    @classmethod
    def _colour_only(cls, layout: Layout) -> Layout:
        if layout not in (Layout.RGB8, Layout.BGR8):
            raise ValueError(f"{layout} is no order of colours: use rgb8 or bgr8")
        return layout

    @model_validator(mode="after")
    def _scaling_needs_floats(self) -> Self:
        if not self.dtype.startswith("float") and (self.scale != 1.0 or self.mean or self.std):
            raise ValueError(f"scale, mean and std need a float dtype, not {self.dtype}")
        if self.std and not all(self.std):
            raise ValueError("std must not be 0")
        return self


class OutputSection(Section):
    """Where the answer is read."""

    tensor: str = Field(min_length=1)  # As in the input; SavedModel: the signature's output key.
    kind: OutputKind


class BoxOrder(StrEnum):
    """What the four numbers of a box are: corners, or centre and size."""

    XYXY = "xyxy"
    YXYX = "yxyx"
    CXCYWH = "cxcywh"


class BoxFormatSection(Section):
    """How a detector writes its boxes."""

    order: BoxOrder = BoxOrder.XYXY
    normalised: bool = False  # In 0..1 of the input's width and height, instead of its pixels.


class DetectionSection(Section):
    """Which of a detector's boxes are told."""

    score_threshold: float = Field(default=0.3, ge=0, le=1)
    iou_threshold: float = Field(default=0.5, ge=0, le=1)  # Of two boxes of one class that overlap more, the better.
    max_detections: int = Field(default=100, ge=1, le=MAX_DETECTIONS)


class SourceSection(Section):
    """The model that another one was converted from."""

    model: str = Field(pattern=NAME)
    sha256: str = Field(pattern=SHA256)


class LabelSection(Section):
    """A class: its name and its colour, red, green, blue."""

    name: str = Field(min_length=1, max_length=64)
    colour: Colour


def _endpoint(address: str) -> str:
    try:
        return str(Endpoint.parse(address))
    except EndpointError as error:
        raise ValueError(str(error)) from error


class RemoteSection(Section):
    """A model on another server, asked over gRPC. TLS and a token come by the environment (docs/guides/engines.md)."""

    address: Annotated[str, AfterValidator(_endpoint)]  # HOST:PORT
    model: str = Field(min_length=1, max_length=256)  # As the server calls it.
    version: Version | None = None  # None: the one that the server takes.
    timeout_ms: float = Field(default=10_000, gt=0, le=600_000)  # For a batch, there and back.
    connect_timeout_s: float = Field(default=10, gt=0, le=600)  # For the server to be there when the model is loaded.


class BatchingSection(Section):
    """How many frames may go through the model at once."""

    max_size: int = Field(default=1, ge=1, le=256)


class WarmUpSection(Section):
    """Runs made before the model is called ready: the first ones allocate, tune and are slow."""

    runs: int = Field(default=3, ge=0, le=100)


class _SingleHead(NamedTuple):
    """The one head of a task, and what it may hold."""

    head: str
    kinds: tuple[OutputKind, ...]


_SINGLE_HEADS = {
    Task.SEGMENTATION: _SingleHead("mask", (OutputKind.CLASS_IDS, OutputKind.SCORES)),
    Task.CLASSIFICATION: _SingleHead("scores", (OutputKind.LOGITS, OutputKind.PROBABILITIES)),
}
_DETECTION_KINDS = {
    "boxes": (OutputKind.BOXES,),
    "scores": (OutputKind.LOGITS, OutputKind.PROBABILITIES),
}


class Manifest(Section):
    """`models/<name>/model.yaml`."""

    name: str | None = Field(default=None, pattern=NAME)  # The folder's name, where given.
    version: Version = "1"
    description: str = ""
    task: Task = Task.SEGMENTATION
    trained: bool = True
    format: str  # One of cloud.engines.engine.FORMATS.
    engine: str | None = None  # One of cloud.engines.engine.ENGINES, or auto; None: the format's own.
    precision: Precision = Precision.FP32  # Of the file's numbers, and what they are computed in.
    converted_from: SourceSection | None = None
    agreement: float | None = Field(default=None, ge=0, le=1)  # Share of labels equal to the source's, when converted.
    agreement_floor: float = Field(default=0.999, ge=0, le=1)  # What `engine: auto` asks of a candidate.
    file: str  # Relative to the manifest's folder; a SavedModel's is a folder, a remote model's the manifest itself.
    sha256: str = Field(
        pattern=f"{SHA256}|^$"
    )  # shared.hashing.tree_sha256 of `file`; of what a server says of a remote model, or empty for any.
    remote: RemoteSection | None = None  # Where the model is, in one of REMOTE_FORMATS.
    signature: str = "serving_default"  # Of a SavedModel, here or on a server.
    input: InputSection
    output: OutputSection | None = None  # Of a model with one head.
    outputs: dict[str, OutputSection] = Field(
        default_factory=dict, max_length=MAX_TENSORS
    )  # Of one with several, by head.
    box_format: BoxFormatSection = BoxFormatSection()
    top_k: int = Field(default=5, ge=1, le=MAX_LABELS)  # Classes that a classification tells.
    detection: DetectionSection = DetectionSection()
    labels: tuple[LabelSection, ...] = Field(default=(), max_length=MAX_LABELS)  # The place is the class id.
    labels_file: str | None = None  # Instead of `labels`: a label file in the repository, relative to this folder.
    batching: BatchingSection = BatchingSection()
    warm_up: WarmUpSection = WarmUpSection()

    @model_validator(mode="before")
    @classmethod
    def _remote_has_no_file(cls, given: Any) -> Any:
        """Nothing of a remote model lies here but its manifest."""
        if isinstance(given, dict) and given.get("remote") is not None:
            return {"file": MANIFEST_NAME, "sha256": "", **given}
        return given

    @model_validator(mode="after")
    def _remote_or_here(self) -> Self:
        if (self.format in REMOTE_FORMATS) != (self.remote is not None):
            raise ValueError(
                f"format {self.format}: give remote, {{address, model}}, with {' or '.join(REMOTE_FORMATS)} alone"
            )
        if self.remote is not None and self.file != MANIFEST_NAME:
            raise ValueError("a remote model has no file here: leave file out, or leave remote out")
        if self.remote is None and not self.sha256:
            raise ValueError("sha256 is empty: write the manifest with `skylane model inspect`")
        return self

    @model_validator(mode="after")
    def _labels_once(self) -> Self:
        if self.task is Task.TENSORS and not self.labels and self.labels_file is None:
            return self
        if bool(self.labels) == (self.labels_file is not None):
            raise ValueError("give either labels, a list of {name, colour}, or labels_file")
        names = [label.name for label in self.labels]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"labels: {repeated[0]!r} is the name of several classes: rename all but one")
        return self

    @model_validator(mode="after")
    def _heads_of_the_task(self) -> Self:
        single = _SINGLE_HEADS.get(self.task)
        if single and (self.output is None or self.outputs):
            raise ValueError(f"a {self.task} model has one head: give output, {{tensor, kind}}, and no outputs")
        if single is None and (self.output is not None or not self.outputs):
            raise ValueError(f"give outputs, a map of {{tensor, kind}} by head, and no output: task {self.task}")
        if self.task is Task.DETECTION and set(self.outputs) != set(_DETECTION_KINDS):
            raise ValueError(f"outputs of a detection are {', '.join(_DETECTION_KINDS)}, not {', '.join(self.outputs)}")
        for head, section in self.heads.items():
            kinds = single.kinds if single else _DETECTION_KINDS.get(head, (OutputKind.TENSOR,))
            if self.task is Task.TENSORS:
                kinds = (OutputKind.TENSOR,)
                if not re.fullmatch(NAME, head):
                    raise ValueError(f"outputs: {head[:80]!r} is no head's name: use 1 to 64 of A-Z a-z 0-9 _ -")
            if section.kind not in kinds:
                raise ValueError(f"head {head}: kind {section.kind} is not for {self.task}: use {' or '.join(kinds)}")
        return self

    @property
    def heads(self) -> dict[str, OutputSection]:
        """The model's outputs by head: `mask` of a segmentation, `scores` of a classification, else as named."""
        single = _SINGLE_HEADS.get(self.task)
        return {single.head: self.output} if single and self.output else dict(self.outputs)

    def with_labels(self, labels: Labels) -> Self:
        """With these labels in it, wherever they came from."""
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
    def _unread(self) -> list[str]:
        """The keys that this task and format do not read."""
        readers = {
            "signature": self.format in ("saved_model", "tensorflow_serving"),
            "file": self.remote is None,
            "top_k": self.task is Task.CLASSIFICATION,
            "box_format": self.task is Task.DETECTION,
            "detection": self.task is Task.DETECTION,
        }
        return [key for key, is_read in readers.items() if not is_read]

    def to_yaml(self) -> str:
        """As `model.yaml` holds it, defaults told; what is empty, and a signature that nothing reads, is left out."""
        document = self.model_dump(mode="json", exclude_none=True)
        document["input"] = {key: value for key, value in document["input"].items() if value != {}}
        document = {key: value for key, value in document.items() if value not in ("", [], {})}
        for key in self._unread:
            del document[key]
        return yaml.safe_dump(document, sort_keys=False, default_flow_style=None, allow_unicode=True, width=100)
