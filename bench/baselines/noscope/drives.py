"""The fixed-camera drives of the comparison: their true answers, and those of the reference network."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from modelling.evaluation.segmentation import labelled_camera
from modelling.evaluation.true_boxes import BOXES, TimestampMatcher, images_with_boxes, truth_of
from ops.processes.child import BenchError
from ops.processes.fixed_time import known_answers_file
from ops.processes.playback import PlaybackSettings
from rosbag_tools.drive.recording import sample_bag
from rosbag_tools.drive.scene import Box
from rosbag_tools.reading.bag import Bag
from rosbag_tools.reading.frames import decode
from rosbag_tools.records import Message
from shared.inference.model import Model

JUDGED_SEEDS = (930_001, 930_002, 930_003, 930_004, 930_005)  # Of no drive for training, validation or tuning.
WIDTH, HEIGHT = 968, 608  # Half of the default camera: 5,000 frames of it would take an hour to render.
CODECS = ("raw", "jpeg")  # The reproduction sends raw pixels, Skylane's vehicle JPEG.
_ANSWERS = Path("runs") / "answers"


@dataclass(frozen=True, slots=True)
class JudgedDrive:
    """A bag with the true answer to "is there a vehicle?" for each frame that is played, 0 or 1."""

    bag: Path
    truth: tuple[int, ...]

    @property
    def vehicle_share(self) -> float:
        """The share of frames with a vehicle."""
        return sum(self.truth) / len(self.truth)

    @property
    def changes(self) -> int:
        """How often the true answer changes from a frame to the next."""
        return sum(one != other for one, other in zip(self.truth, self.truth[1:], strict=False))


def fixed_camera_bag(seed: int, frames: int, progress: Callable[[], None]) -> Path:
    """Returns the drive of a fixed camera with the default traffic, which is rendered if it does not exist."""
    return sample_bag(frames, progress, width=WIDTH, height=HEIGHT, seed=seed, static_camera=True)


def read_drive(bag: Path, frames: int) -> JudgedDrive:
    """Reads the true answers of the first frames of a bag.

    Raises:
        BenchError: the bag has fewer frames with true boxes.
        SkylaneError: it cannot be read, or has no true boxes.
    """
    camera, boxes, _ = labelled_camera(bag, None, BOXES)
    matcher: TimestampMatcher[Message, list[Box]] = TimestampMatcher()
    truth: list[int] = []
    with Bag(bag) as opened:
        for message, true in images_with_boxes(opened, camera, boxes, matcher):
            truth.append(truth_of(true, decode(message)[0].shape[0]))
            if len(truth) == frames:
                return JudgedDrive(bag, tuple(truth))
    raise BenchError(f"{bag} has {len(truth)} frames with true boxes, fewer than {frames}: set --frames {len(truth)}")


def answer_files(
    bag: Path, models: Path, model: Model, frames: int, on_image: Callable[[int], None]
) -> tuple[Path, ...]:
    """Returns the files with the reference network's answers for a drive, which are computed if they do not exist."""
    settings = [PlaybackSettings(bag, models, model.card.name, codec, frames=frames) for codec in CODECS]
    return tuple(known_answers_file(each, model, _ANSWERS, on_image) for each in settings)
