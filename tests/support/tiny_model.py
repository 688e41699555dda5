"""A model that needs no library and returns the first channel of each image, and frames for it."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize, plan
from shared.imaging.labels import Labels
from shared.inference.engine import Engine as EngineContract
from shared.inference.engine import Outputs
from shared.inference.model import Model
from shared.messages.frame import FrameMessage, RequestOptions
from shared.messages.model_card import ModelCard
from shared.messages.topics import FrameId
from shared.models.manifest import BatchingSection, InputSection, Manifest, OutputKind, OutputSection, Precision

HEIGHT, WIDTH = 4, 6
LABELS = Labels(
    ("a", *(f"class-{number}" for number in range(1, 256))), ((0, 0, 0),) * 256
)  # One for every pixel value.
CARD = ModelCard(
    "tiny", "1", "ab" * 32, "segmentation", HEIGHT, WIDTH, Layout.RGB8, Resize.CROP, LABELS, trained=True
)  # fmt: skip


class Engine:
    """Returns the first channel of each image; `act` is called before that."""

    name = "tensorflow"
    device = "cpu"
    precision = Precision.FP32
    batch_size: int | None = None

    def __init__(self, act: Callable[[], None] = lambda: None) -> None:
        self._act = act
        self.closed = threading.Event()

    def infer(self, batch: npt.NDArray[np.uint8]) -> Outputs:
        """See Engine."""
        assert not self.closed.is_set()
        self._act()
        return {"mask": np.ascontiguousarray(batch[..., 0])}

    def close(self) -> None:
        """See Engine."""
        self.closed.set()


def model(
    act: Callable[[], None] = lambda: None,
    name: str = "tiny",
    version: str = "1",
    engine: EngineContract | None = None,
    max_size: int = 1,
) -> Model:
    """A version of the model; `act` is called with every batch."""
    manifest = Manifest(
        format="frozen_graph",
        file="none",
        sha256=CARD.sha256,
        input=InputSection(tensor="input:0", height=HEIGHT, width=WIDTH),
        output=OutputSection(tensor="prediction:0", kind=OutputKind.CLASS_IDS),
        labels_file="none",
        batching=BatchingSection(max_size=max_size),
    )
    return Model(manifest, replace(CARD, name=name, version=version), engine or Engine(act))


def tensor_model(engine: Engine, heads: Sequence[str], name: str = "tiny", version: str = "1") -> Model:
    """A version of a model that returns its output tensors."""
    manifest = Manifest(
        task="tensors",
        format="frozen_graph",
        file="none",
        sha256=CARD.sha256,
        input=InputSection(tensor="input:0", height=HEIGHT, width=WIDTH),
        outputs={head: OutputSection(tensor=f"{head}:0", kind=OutputKind.TENSOR) for head in heads},
    )
    return Model(manifest, replace(CARD, name=name, version=version, task="tensors", outputs=tuple(heads)), engine)


def frame(sequence: int, model: str = "tiny", version: str | None = None) -> FrameMessage:
    """A frame whose pixels all have the value of its sequence number."""
    return FrameMessage(
        id=FrameId("car", "left", "s1", sequence),
        model=model,
        version=version,
        layout=Layout.RGB8,
        shape=(HEIGHT, WIDTH, 3),
        codec="raw",
        geometry=plan(Resize.CROP, HEIGHT, WIDTH, HEIGHT, WIDTH),
        stamp_ns=0,
        data=bytes([sequence % 256]) * (HEIGHT * WIDTH * 3),
        options=RequestOptions("raw"),
    )
