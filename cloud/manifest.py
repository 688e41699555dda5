"""A model's manifest: `model.yaml`, which says what lies in a model's folder and how to feed and read it."""

from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, Literal, Self

import yaml
from pydantic import BeforeValidator, Field, field_validator, model_validator

from shared.config import Section
from shared.frames import Layout
from shared.geometry import Resize

MAX_SIDE = 16_384  # Pixels; a larger input is a mistake in the manifest.
MAX_CLASSES = 256  # A mask holds class ids as uint8.

Colour = tuple[
    Annotated[int, Field(ge=0, le=255)], Annotated[int, Field(ge=0, le=255)], Annotated[int, Field(ge=0, le=255)]
]
Triple = tuple[float, float, float]
Version = Annotated[str, BeforeValidator(lambda given: str(given) if isinstance(given, (int, float)) else given)]


class OutputKind(StrEnum):
    """What the output tensor holds for a pixel."""

    CLASS_IDS = "class_ids"  # N×H×W or N×H×W×1: the class's number.
    SCORES = "scores"  # N×H×W×C: a score a class; the highest wins, the lowest id where two are equal.


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


class LabelSection(Section):
    """A class: its name and its colour, red, green, blue."""

    name: str = Field(min_length=1, max_length=64)
    colour: Colour


class BatchingSection(Section):
    """How many frames may go through the model at once."""

    max_size: int = Field(default=1, ge=1, le=256)


class WarmUpSection(Section):
    """Runs made before the model is called ready: the first ones allocate, tune and are slow."""

    runs: int = Field(default=3, ge=0, le=100)


class Manifest(Section):
    """`models/<name>/model.yaml`."""

    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_-]{1,64}$")  # The folder's name, where given.
    version: Version = "1"
    description: str = ""
    task: Literal["segmentation"] = "segmentation"
    trained: bool = True
    format: str  # A name of cloud.engines.engine.ENGINES.
    file: str  # Relative to the manifest's folder; a SavedModel's is a folder.
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")  # shared.hashing.tree_sha256 of `file`.
    signature: str = "serving_default"  # Of a SavedModel.
    input: InputSection
    output: OutputSection
    labels: tuple[LabelSection, ...] = Field(default=(), max_length=MAX_CLASSES)  # The place is the class id.
    labels_file: str | None = None  # Instead of `labels`: a label file in the repository, relative to this folder.
    batching: BatchingSection = BatchingSection()
    warm_up: WarmUpSection = WarmUpSection()

    @model_validator(mode="after")
    def _labels_once(self) -> Self:
        if bool(self.labels) == (self.labels_file is not None):
            raise ValueError("give either labels, a list of {name, colour}, or labels_file")
        names = [label.name for label in self.labels]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"labels: {repeated[0]!r} is the name of several classes: rename all but one")
        return self

    @field_validator("file")
    @classmethod
    def _stays_inside(cls, file: str) -> str:
        path = PurePosixPath(file)
        if not file or path.is_absolute() or ".." in path.parts:
            raise ValueError(f"{file!r} must be a path inside the model's folder")
        return file

    def to_yaml(self) -> str:
        """As `model.yaml` holds it, defaults told; what is empty, and a signature that nothing reads, is left out."""
        document = self.model_dump(mode="json", exclude_none=True)
        document["input"] = {key: value for key, value in document["input"].items() if value != {}}
        document = {key: value for key, value in document.items() if value not in ("", [])}
        if self.format != "saved_model":
            del document["signature"]
        return yaml.safe_dump(document, sort_keys=False, default_flow_style=None, allow_unicode=True, width=100)
