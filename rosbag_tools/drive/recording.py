"""Records a synthetic drive into a bag: images, calibration, true labels and boxes; also the sample bags."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rosbag_tools.drive.scene import CLASSES, Drive
from rosbag_tools.drive.sensor import Sensor
from rosbag_tools.records import SYNTHETIC
from rosbag_tools.writer import BagWriter
from shared.imaging.frames import Layout

CAMERA = "/sensors/camera/left"
FRAME_ID = f"{SYNTHETIC}camera_left_optical"  # Every message with a header carries the mark, so that copies keep it.

_START_NS = 1_700_000_000_000_000_000  # An arbitrary date, the same for every drive.
_DELAY_NS = 12_000_000  # Delay from the stamp of the exposure to the recorder.
_JITTER_NS = 1_500_000
_SPACING_NS = 100_000  # Time between the messages of one frame.


@dataclass(frozen=True, slots=True)
class DrivePlan:
    """Settings of a recording; the same settings give the same frames in every format."""

    seed: int = 0
    frames: int = 300
    rate_hz: float = 10.0
    weather: str = "clear"
    layout: Layout = Layout.BAYER_RGGB8
    width: int = 1936
    height: int = 1216
    static_camera: bool = False


def record(
    path: Path,
    plan: DrivePlan,
    *,
    bag_format: str | None = None,
    compression: str = "none",
    overwrite: bool = False,
    progress: Callable[[], object] = lambda: None,
) -> None:
    """Renders a drive and writes it into a bag.

    Every frame has `image_raw`, `camera_info`, `labels` (mono8, true class ids), `boxes` (true boxes of vehicles and
    persons) and `label_info` (the names of the classes), all with the stamp of the sensor. The recording time is later
    by a varying delay, as with a real recorder.

    Raises:
        SkylaneError: the bag cannot be written (earlier messages stay readable), or the weather is unknown.
    """
    drive = Drive(
        plan.seed, width=plan.width, height=plan.height, weather=plan.weather, static_camera=plan.static_camera
    )
    sensor = Sensor(plan.seed, plan.layout)
    delays = np.random.default_rng(plan.seed)
    with BagWriter(path, bag_format, compression, overwrite=overwrite) as writer:
        for index in range(plan.frames):
            offset_s = index / plan.rate_hz
            scene = drive.render(offset_s)
            stamp_ns = _START_NS + round(offset_s * 1e9)
            at_ns = stamp_ns + _DELAY_NS + int(delays.integers(_JITTER_NS))
            writer.write_image(
                f"{CAMERA}/image_raw", sensor.capture(scene.rgb, index), plan.layout.value, stamp_ns, at_ns, FRAME_ID
            )
            writer.write_camera_info(
                f"{CAMERA}/camera_info",
                plan.height,
                plan.width,
                drive.focal_px,
                stamp_ns=stamp_ns,
                received_ns=at_ns + _SPACING_NS,
                frame_id=FRAME_ID,
            )
            writer.write_image(
                f"{CAMERA}/labels", scene.class_ids, "mono8", stamp_ns, at_ns + 2 * _SPACING_NS, FRAME_ID
            )
            writer.write_boxes(
                f"{CAMERA}/boxes",
                scene.boxes,
                stamp_ns=stamp_ns,
                received_ns=at_ns + 3 * _SPACING_NS,
                frame_id=FRAME_ID,
            )
            writer.write_label_info(
                f"{CAMERA}/label_info",
                CLASSES,
                stamp_ns=stamp_ns,
                received_ns=at_ns + 4 * _SPACING_NS,
                frame_id=FRAME_ID,
            )
            progress()


SEED = 2026


_WIDTH, _HEIGHT = 1936, 1216


def sample_bag(
    frames: int,
    progress: Callable[[], object] = lambda: None,
    *,
    width: int = _WIDTH,
    height: int = _HEIGHT,
    seed: int = SEED,
    static_camera: bool = False,
) -> Path:
    """Returns a bag with a synthetic drive under `runs/bags`, which is rendered if it does not exist.

    `progress` is called after every rendered frame. `static_camera`: the camera stands at the kerb.
    """
    size = "" if (width, height) == (_WIDTH, _HEIGHT) else f"-{width}x{height}"
    kind = "synthetic-static" if static_camera else "synthetic"
    path = Path("runs") / "bags" / f"{kind}-{seed}-{frames}{size}"
    if not path.exists():
        draft = path.with_name(f"{path.name}.part")
        plan = DrivePlan(seed=seed, frames=frames, width=width, height=height, static_camera=static_camera)
        record(draft, plan, overwrite=True, progress=progress)
        draft.rename(path)
    return path
