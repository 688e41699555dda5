"""The steps of each frame of a batch, decoding and inference, which are the same for all executors.

An executor passes on every item of `decode_bag` in order: frames to `FrameInference`, whose results go to the bag's
`results.ResultWriter`, and the end of the bag to the writer itself.
"""

from collections.abc import Generator
from contextlib import closing
from typing import Any

import numpy as np

from cloud.models.opening import open_model
from edge.pipeline import colour_image
from edge.sources.source import open_source
from ops.batch.frames import BagEnd, PreparedFrame, SegmentedFrame
from ops.batch.library import LibraryBag
from ops.batch.output.mask_formats import MASK_FORMATS
from ops.batch.settings import BatchSettings
from rosbag_tools.reading.frames import BagSource
from shared.errors import SkylaneError
from shared.imaging import geometry, image_codecs
from shared.imaging.bayer import to_colour
from shared.imaging.codec import Mask
from shared.imaging.frames import Frame, Layout, UnreadableFrame
from shared.messages.model_card import ModelCard
from shared.task import task_named
from shared.tasks.drawing import mark_untrained

_TASK = "segmentation"
_CLASS_IDS = 256  # Possible values of a mask's pixel.
_OPACITY, _QUALITY = 0.5, 85  # Opacity of the mask and JPEG quality of a picture.


class BatchError(SkylaneError):
    """A batch, or one bag of it, cannot be processed."""


def decode_bag(bag: LibraryBag, settings: BatchSettings) -> Generator[PreparedFrame | BagEnd]:
    """Yields the frames of a bag in recording order, then its end, which holds any error."""
    frames = unreadable = 0
    first = ""
    claims: tuple[str, ...] = ()
    try:
        card = settings.card()
        opened = open_source(str(bag.path), topics=settings.topics, bits=settings.bits, encodings=settings.encodings)
        with closing(opened) as source:
            claims = source.false_claims if isinstance(source, BagSource) else ()
            for frame in source.frames():
                try:
                    prepared = _prepared(frame, card, settings, source.frame_count)
                except SkylaneError as error:
                    unreadable += 1
                    first = first or f"{frame.camera} frame {frame.index}: {error}"
                    continue
                frames += 1
                yield prepared
            _check_frames(bag, frames, first)
            identity: dict[str, Any] = source.provenance
        bag.check_unchanged()
        yield BagEnd(identity["sha256"], unreadable, first, false_claims=claims, notes=tuple(identity.get("notes", ())))
    except (SkylaneError, OSError) as error:
        yield BagEnd("", unreadable, first, str(error))
    except Exception as error:  # noqa: BLE001  A library met bytes that it did not expect: the bag fails, the others go on.
        yield BagEnd("", unreadable, first, f"{bag.path}: unexpected {type(error).__name__}: {error}")


class FrameInference:
    """The model of a batch, loaded and warmed up. One thread uses it.

    Frames are inferred one by one, because the results of a batch could depend on which frames it contains.
    """

    def __init__(self, settings: BatchSettings) -> None:
        """Loads the model.

        Raises:
            SkylaneError: the model cannot be loaded, or does not segment.
        """
        stored = settings.stored_model()
        if stored.manifest.task != _TASK:
            raise BatchError(
                f"model {stored.name} answers {stored.manifest.task}, and a batch needs masks: give a model of {_TASK}"
            )
        self._model = open_model(stored, settings.chosen_engine(), settings.placement(), max_batch=1)
        self._encode = MASK_FORMATS[settings.masks].encode
        self._labels = len(self._model.card.labels.names)
        self._picture_interval = settings.pictures
        self._model.warm_up()

    def run(self, frame: PreparedFrame) -> SegmentedFrame:
        """Computes the mask of a frame.

        Raises:
            SkylaneError: the model failed.
        """
        mask: Mask = np.ascontiguousarray(self._model.predict(frame.image[np.newaxis])[0])
        return SegmentedFrame(
            frame.camera,
            frame.index,
            frame.stamp_ns,
            frame.source_ns,
            frame.geometry,
            self._encode(mask, frame.geometry),
            self._counts(mask),
            self._picture(frame, mask),
        )

    def close(self) -> None:
        """Releases memory and devices."""
        self._model.close()

    def _picture(self, frame: PreparedFrame, mask: Mask) -> bytes:
        if not self._picture_interval or frame.index % self._picture_interval:
            return b""
        card = self._model.card
        rgb = to_colour(frame.image, card.layout, Layout.RGB8, "bilinear")
        drawn = task_named(_TASK).draw(rgb, mask, card.labels, frame.geometry, _OPACITY)
        return bytes(image_codecs.encode(mark_untrained(drawn, card), Layout.RGB8, "jpeg", _QUALITY))

    def _counts(self, mask: Mask) -> tuple[int, ...]:
        counts = np.bincount(mask.reshape(-1), minlength=_CLASS_IDS)
        if counts[self._labels :].any():
            raise BatchError(f"the model answered class {int(mask.max())}, but it has only {self._labels} labels")
        return tuple(counts[: self._labels].tolist())


def _check_frames(bag: LibraryBag, frames: int, first_unreadable: str) -> None:
    if not frames:
        reason = f"no frame that can be decoded; {first_unreadable}" if first_unreadable else "no frames"
        raise BatchError(f"{bag.path} has {reason}")


def _prepared(
    frame: Frame | UnreadableFrame, card: ModelCard, settings: BatchSettings, total: int | None
) -> PreparedFrame:
    """Returns the model's input for a frame; raises a SkylaneError if the frame cannot be converted."""
    if isinstance(frame, UnreadableFrame):
        raise BatchError(frame.reason)
    colour, plan = colour_image(frame, card, settings)
    image = np.ascontiguousarray(geometry.apply(colour, plan))
    return PreparedFrame(frame.camera, frame.index, frame.stamp_ns, frame.source_ns, image, plan, total)
