"""The images of a bag as a model takes them, and their ground truth: labels, boxes, and the answer to a question."""

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from modelling.evaluation.metrics import Floats, TrueObjects
from rosbag_tools.drive.scene import HEIGHT_SHARE, OBJECTS, Box
from rosbag_tools.messages.ros_types import read_boxes, read_label_info, read_stamp
from rosbag_tools.reading.bag import Bag
from rosbag_tools.reading.frames import BagSource, ImageDecoder, depth_topics
from rosbag_tools.reading.video_topics import with_pictures
from rosbag_tools.records import Damage, Message
from shared.errors import SkylaneError, suggestion
from shared.imaging.bayer import demosaic_method, to_colour
from shared.imaging.boxes import to_target
from shared.imaging.frames import Frame, Layout, Pixels, UnreadableFrame
from shared.imaging.geometry import Geometry, apply, plan
from shared.messages.model_card import ModelCard
from shared.messages.results import Detections

LABELS = "/labels"  # The suffix of a topic with true labels.
LABEL_INFO = "/label_info"  # The suffix of the topic with their names.
BOXES = "/boxes"  # The suffix of a topic with true boxes.
_MAX_WAITING = 64  # Unmatched images or truths to keep; recorders write a pair close together.

Image = TypeVar("Image")
Truth = TypeVar("Truth")


class TimestampMatcher(Generic[Image, Truth]):
    """Keeps the first part of each pair until the other arrives, and counts the images without a truth."""

    def __init__(self) -> None:
        self.unmatched = 0
        self._images: dict[int, Image] = {}
        self._truths: dict[int, Truth] = {}

    def add(self, stamp_ns: int, item: Image | Truth, *, is_image: bool) -> tuple[Image, Truth] | None:
        """Returns the pair that an image or a truth completes, or keeps it and returns None."""
        own: dict[int, Any] = self._images if is_image else self._truths
        others: dict[int, Any] = self._truths if is_image else self._images
        if stamp_ns in others:
            other = others.pop(stamp_ns)
            return (item, other) if is_image else (other, item)  # type: ignore[return-value]  # By its kind.
        own[stamp_ns] = item
        if len(own) > _MAX_WAITING:
            del own[next(iter(own))]
            self.unmatched += is_image
        return None

    def end(self) -> None:
        """Counts the remaining images as unmatched."""
        self.unmatched += len(self._images)


SMALLEST = 6.0  # Root of a box's area in pixels; smaller boxes are neither trained nor counted.

_MIN_VISIBLE = 0.4  # The share of a box that a crop must show to train on it.


def truth_of(boxes: Sequence[Box], height: float) -> int:
    """Returns the true answer to "is there a vehicle?" for a frame: the class id in `rosbag_tools.drive.scene.PRESENCE`.

    Args:
        boxes: The true boxes of the frame, of all classes.
        height: The height of the frame, in pixels of the boxes.
    """
    return int(any(box.name in OBJECTS["vehicle"] and box.height >= HEIGHT_SHARE * height for box in boxes))


def images_with_boxes(
    bag: Bag, camera: str, truth: str, matcher: TimestampMatcher[Message, list[Box]]
) -> Iterator[tuple[Message, list[Box]]]:
    """Yields the images on the topic `camera` with the true boxes of the same timestamp on the topic `truth`.

    The matcher counts the images without boxes, and those that cannot be read.
    """
    for item in with_pictures(bag.messages({camera, truth})):
        if isinstance(item, Damage) or item.loss:
            matcher.unmatched += item.channel is not None and item.channel.topic == camera
            continue
        is_image = item.channel.topic == camera
        pair = matcher.add(read_stamp(item), item if is_image else read_boxes(item), is_image=is_image)
        if pair is not None:
            yield pair
    matcher.end()


def split_boxes(rows: Floats, height: int, width: int) -> tuple[Floats, Floats]:
    """Clips boxes N×5 (class, x1, y1, x2, y2) to an image.

    Returns the boxes to train on or to count, and those that are too small or mostly outside; both without those that are
    completely outside.
    """
    low, high = np.maximum(rows[:, 1:3], 0), np.minimum(rows[:, 3:], (width, height))
    visible = np.prod(np.maximum(high - low, 0), axis=1)
    whole = np.prod(rows[:, 3:] - rows[:, 1:3], axis=1)
    clipped = np.concatenate([rows[:, :1], low, high], axis=1).astype(np.float32)
    is_trained = (visible >= SMALLEST**2) & (visible >= _MIN_VISIBLE * whole)
    return clipped[is_trained], clipped[~is_trained & (visible > 0)]


class TrueBoxes:
    """Converts the true boxes of frames to the classes of a detector; counts all boxes, and those of other classes."""

    def __init__(self, names: Sequence[str]) -> None:
        """`names` are those of the classes. A box has the class of its name, or of the group of its name in OBJECTS."""
        grouped = {name: class_id for class_id, group in enumerate(names) for name in OBJECTS.get(group, ())}
        self._class_of = grouped | {name: class_id for class_id, name in enumerate(names)}
        self._names = names
        self.count = 0  # Boxes so far.
        self.foreign: Counter[str] = Counter()  # Boxes of other classes by name.

    def known(self, true: Sequence[Box]) -> TrueObjects:
        """Returns the boxes of the detector's classes, N×4 in pixels of the frame, and their class ids."""
        known = [box for box in true if box.name in self._class_of]
        self.count += len(true)
        self.foreign.update(box.name for box in true if box.name not in self._class_of)
        return corners(known), np.array([self._class_of[box.name] for box in known], np.intp)

    def in_input(self, true: Sequence[Box] | Detections, geometry: Geometry) -> TrueObjects:
        """Returns the boxes N×4 in pixels of the detector's input, and their class ids.

        Boxes of a bag are clipped to the input. A detector's own boxes count as they are.

        Raises:
            EvaluationError: the detector has none of the classes of a bag.
        """
        if isinstance(true, Detections):
            return to_target(true.boxes, geometry), true.class_ids.astype(np.intp)
        if not any(name in self._class_of for group in OBJECTS.values() for name in group):
            raise EvaluationError(
                f"none of the model's classes ({', '.join(self._names)[:200]}) is one of the drive's: its boxes "
                "cannot be evaluated"
            )
        boxes, class_ids = self.known(true)
        rows = np.concatenate([class_ids[:, np.newaxis].astype(np.float32), to_target(boxes, geometry)], axis=1)
        clipped = np.concatenate(split_boxes(rows, geometry.target_height, geometry.target_width))
        return clipped[:, 1:], clipped[:, 0].astype(np.intp)


def corners(boxes: Sequence[Box]) -> Floats:
    """Returns the corners of boxes, N×4: x1, y1, x2, y2."""
    rows = [(box.x, box.y, box.x + box.width, box.y + box.height) for box in boxes]
    return np.array(rows, np.float32).reshape(-1, 4)


def in_input(found: Detections, geometry: Geometry) -> Detections:
    """Converts objects from pixels of the source of `geometry` to pixels of its target, the model's input."""
    return Detections(to_target(found.boxes, geometry), found.class_ids, found.scores)


ComparedWith = Literal["labels", "results"]  # The truth in a bag, or the results of the reference model.


class EvaluationError(SkylaneError):
    """A model cannot be evaluated on a bag."""


def check_given_once(recordings: Sequence[Path]) -> None:
    """Checks that no recording would count twice, also by another path.

    Raises:
        EvaluationError: one is given twice.
    """
    paths = [each.resolve() for each in recordings]
    for path in paths:
        if paths.count(path) > 1:
            raise EvaluationError(f"{path} is given twice: its frames would count twice, and be judged by themselves")


@dataclass(frozen=True, slots=True)
class EvaluationSettings:
    """The recordings, labels and limits of an evaluation."""

    truth: str | None = None  # The class of all frames, for a classifier.
    map_file: Path | None = None  # For a segmentation, see `modelling.evaluation.class_map`.
    camera: str | None = None  # The image topic; by default the first one with ground truth.
    frames: int | None = None  # The largest number of frames; None for all.
    compared_with: ComparedWith | None = None  # None: labels if there are some, see `ReferenceComparison`.
    on_frame: Callable[[int, int | None], None] = lambda _done, _total: None  # Called after each evaluated frame.


def prepared(pixels: Pixels, layout: Layout, card: ModelCard) -> tuple[npt.NDArray[np.uint8], Geometry]:
    """Returns an image as uint8 H×W×3 in a model's size and channel order, and the applied geometry.

    Bayer images are demosaiced as on a vehicle by default.

    Raises:
        SkylaneError, GeometryError: the image cannot be converted.
    """
    height, width = pixels.shape[:2]
    geometry = plan(card.resize, height, width, card.height, card.width)
    method = demosaic_method("auto", layout, geometry)
    return apply(to_colour(pixels, layout, card.layout, method), geometry), geometry


def prepared_images(path: Path, card: ModelCard, count: int, *, with_grey: bool = True) -> list[npt.NDArray[np.uint8]]:
    """Returns the first readable images of a bag as uint8 H×W×3 in a model's size and channel order, at most `count`.

    The images are those of all cameras; without `with_grey`, mono8 images are left out.

    Raises:
        SkylaneError: the bag cannot be read, or has no such image.
    """
    with closing(BagSource(path)) as source:
        frames = (each for each in source.frames() if isinstance(each, Frame))
        chosen = (each for each in frames if with_grey or each.layout is not Layout.MONO8)
        images = [prepared(each.pixels, each.layout, card)[0] for each in islice(chosen, count)]
    if not images:
        kind = "readable frame" if with_grey else "readable frame in colour"
        raise EvaluationError(f"{path} holds no {kind}: make one with 'skylane bag make'")
    return images


class LabelledImage(NamedTuple):
    """An image with its ground truth."""

    pixels: Pixels
    layout: Layout
    stamp_ns: int
    truth: Any  # True labels H×W, or true boxes; None if results are compared with those of the reference model.


class LabelledImages:
    """The images of a bag's camera with the ground truth of the same timestamp, at most `frames` of them.

    `unmatched` counts the images without a truth and those that cannot be read, as far as the bag was read. `names` are the
    classes of the labels by class id; None if the bag does not name them.
    """

    def __init__(self, path: Path, camera: str | None = None, suffix: str = LABELS, frames: int | None = None) -> None:
        """Finds the camera; see `labelled_camera`."""
        self.camera, self._truth, count = labelled_camera(path, camera, suffix)
        self.total = min(count, frames or count)
        self.names = label_names(path, self._truth) if suffix == LABELS else None
        self._path, self._suffix, self._frames = path, suffix, frames
        self._matcher: TimestampMatcher[Any, Any] = TimestampMatcher()
        self.count = 0  # Images so far.

    @property
    def unmatched(self) -> int:
        """The number of images without a truth, or unreadable."""
        return self._matcher.unmatched

    @property
    def sha256(self) -> str:
        """The hash of the bag."""
        with Bag(self._path) as bag:
            return bag.sha256

    def __iter__(self) -> Iterator[LabelledImage]:
        """Yields the images in their order.

        Raises:
            EvaluationError: no image has a truth of the same timestamp.
        """
        with closing(self._with_boxes() if self._suffix == BOXES else self._with_labels()) as images:
            for self.count, image in enumerate(images, start=1):
                yield image
                if self.count == self._frames:
                    break
        if not self.count:
            kind = self._suffix.strip("/")
            raise EvaluationError(
                f"{self._path}: no image on {self.camera} has {kind} of the same timestamp on {self._truth}"
            )

    def _with_labels(self) -> Generator[LabelledImage]:
        with closing(BagSource(self._path, topics=[self.camera, self._truth])) as source:
            for frame, true in images_with_labels(source, self.camera, self._matcher):
                yield LabelledImage(frame.pixels, frame.layout, frame.stamp_ns, true.pixels)

    def _with_boxes(self) -> Generator[LabelledImage]:
        with Bag(self._path) as bag:
            decoder = ImageDecoder(bag, bag.find([self.camera]))
            for message, boxes in images_with_boxes(bag, self.camera, self._truth, self._matcher):
                yield LabelledImage(*decoder.decode(message), read_stamp(message), boxes)


def label_names(path: Path, labels: str) -> tuple[str, ...] | None:
    """Returns the classes of the labels on a topic by class id; None if the bag does not name them.

    Raises:
        SkylaneError: the bag cannot be read, or its message with the names.
    """
    with Bag(path) as bag:
        wanted = f"{labels.removesuffix(LABELS)}{LABEL_INFO}"
        if not any(topic.name == wanted for topic in bag.topics):
            return None
        messages = (each for each in bag.messages({wanted}) if isinstance(each, Message))
        first = next(messages, None)
        return None if first is None else read_label_info(first)


def images_with_labels(
    source: BagSource, camera: str, matcher: TimestampMatcher[Frame, Frame]
) -> Iterator[tuple[Frame, Frame]]:
    """Yields the images on the topic `camera` with the true labels of the same timestamp, the source's other topic.

    The matcher counts the images without labels, and those that cannot be read.

    Raises:
        EvaluationError: labels are not mono8 of the image's size.
    """
    for frame in source.frames():
        if isinstance(frame, UnreadableFrame):
            matcher.unmatched += frame.camera == camera
            continue
        pair = matcher.add(frame.stamp_ns, frame, is_image=frame.camera == camera)
        if pair is None:
            continue
        image, truth = pair
        if truth.layout is not Layout.MONO8 or truth.pixels.shape != image.pixels.shape[:2]:
            raise EvaluationError(
                f"labels on {truth.camera} are {truth.layout} of {truth.pixels.shape}, the image is "
                f"{image.pixels.shape[:2]}: labels must be mono8 of the image's size"
            )
        yield pair
    matcher.end()


def labelled_camera(path: Path, camera: str | None, truth: str = LABELS) -> tuple[str, str, int]:
    """Finds a camera with ground truth in a bag; returns its topic, the truth's topic, and the number of images.

    Args:
        path: The bag.
        camera: The image topic; the first one with ground truth by default.
        truth: The suffix of the truth's topic, which has the same prefix as the camera's.

    Raises:
        SkylaneError: the bag cannot be read, or has no such camera with ground truth.
    """
    bag = Bag(path)
    try:
        counts = {topic.name: topic.count for topic in bag.topics}
        images = {topic.name for topic in bag.topics if topic.channel.has_images}
        if camera is None:
            images -= depth_topics(bag).keys()
    finally:
        bag.close()
    by_folder = {name.removesuffix(truth): name for name in counts if name.endswith(truth)}
    labelled = {
        name: by_folder[name.rpartition("/")[0]]
        for name in counts
        if name in images and name.rpartition("/")[0] in by_folder and not name.endswith((truth, LABELS))
    }
    if not labelled:
        raise EvaluationError(
            f"{path} holds no true {truth.strip('/')} (a topic …{truth}): `skylane bag make` writes them"
        )
    wanted = next(iter(labelled)) if camera is None else camera
    for name, truth_topic in labelled.items():
        if name.lstrip("/") == wanted.lstrip("/"):  # Topics have a leading slash in some bags only.
            return name, truth_topic, counts[name]
    raise EvaluationError(f"{path} has no camera with {truth.strip('/')} on {wanted!r}{suggestion(wanted, labelled)}")
