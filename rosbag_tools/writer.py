"""Writes bags (ROS 1, sqlite or MCAP, optionally compressed) that stay readable after errors and a full disk."""

import os
import shutil
import sqlite3
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from rosbags.interfaces import Connection
from rosbags.rosbag2 import Writer as Ros2Writer
from rosbags.rosbag2.storage_mcap import McapWriter
from rosbags.rosbag2.storage_sqlite3 import Sqlite3Writer
from rosbags.typesys.store import Typestore

from rosbag_tools.bag_format import (
    BY_FILE,
    BagFormat,
    add_connection,
    check_target,
    chosen_format,
    new_writer,
    remove_bag,
)
from rosbag_tools.messages.ros_types import DETECTED_IDS, DETECTIONS, HEADER, LABEL_INFO, own_types
from rosbag_tools.reading import mcap_file
from rosbag_tools.records import IMAGE, Box, TopicChannel
from shared.errors import SkylaneError, reason_of
from shared.imaging.frames import Pixels

_CAMERA_INFO = "sensor_msgs/msg/CameraInfo"
SPARE_BYTES = 1 << 24  # Disk space kept free for the index.
COMMIT_BYTES = 1 << 25  # Maximum data that a killed sqlite recording loses.
_FAILURES = (
    OSError,
    sqlite3.Error,
    struct.error,
    OverflowError,
)  # The last two are raised for times that a format cannot store.


class BagWriter:
    """Writes one bag. The context manager closes the bag also after an error, so that it can be read.

    Messages must come in the order of `received_ns`, the time of the recorder; `stamp_ns` is the time of the sensor.

    Args:
        path: A file named .bag (ROS 1) or .mcap, or a folder for MCAP or sqlite.
        bag_format: A name of `BagFormat`; None selects ROS 1 for a path named .bag, otherwise MCAP.
        compression: "none"; ROS 1: "bz2" or "lz4"; ROS 2: "zstd" (per chunk in MCAP, per message in sqlite),
            "zstd-message" or "zstd-file".
        overwrite: True to replace an existing bag at `path`; other files are never replaced.

    Raises:
        SkylaneError: the path exists, or its name does not fit the format;
            the disk is full or fails; the writing methods raise it too. Earlier messages stay readable, except those
            of the last chunk if writing fails.
    """

    def __init__(
        self, path: Path, bag_format: str | None = None, compression: str = "none", *, overwrite: bool = False
    ) -> None:
        self.path = path
        self.format = chosen_format(path, bag_format)
        self.message_count = 0
        self._types = own_types(self.format.wire)
        self._connections: dict[tuple[str, str], Connection] = {}
        self._sequences: dict[str, int] = {}
        self._written_bytes = 0
        self._uncommitted_bytes = 0
        self._is_copied_at_end = compression == BY_FILE
        self._is_failed = False
        # rosbags writes a folder: the file in it is moved to `path` when it is complete.
        is_one_file = path.suffix == ".mcap" and self.format is BagFormat.MCAP and not self._is_copied_at_end
        self._folder = path.with_name(f".{path.stem}.writing") if is_one_file else None
        try:
            check_target(path, overwrite=overwrite)
            if overwrite:
                remove_bag(path)
            self._writer = new_writer(self._folder or path, self.format, compression)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._require_space(0)
            self._writer.open()
            if isinstance(self._storage, Sqlite3Writer):
                # Commits do not wait for the disk: only a power failure can lose data, not a killed process.
                self._storage.conn.execute("PRAGMA synchronous=OFF")
        except _FAILURES as error:
            raise SkylaneError(f"bag {path} cannot be written: {reason_of(error)}") from error
        self._is_open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write_image(  # noqa: PLR0917 - the arguments are the fields of the message.
        self, topic: str, pixels: Pixels, encoding: str, stamp_ns: int, received_ns: int, frame_id: str
    ) -> None:
        """Writes a `sensor_msgs/Image`: pixels H×W or H×W×C, uint8 or uint16, and ROS's name of their encoding."""
        data: npt.NDArray[Any] = np.ascontiguousarray(pixels, pixels.dtype.newbyteorder("<"))
        height, width = data.shape[:2]
        data = data.reshape(-1).view(np.uint8)
        header = self._header(topic, stamp_ns, frame_id)
        self._write(topic, IMAGE, received_ns, header, height, width, encoding, 0, data.size // height, data)

    def write_camera_info(
        self, topic: str, height: int, width: int, focal_px: float, *, stamp_ns: int, received_ns: int, frame_id: str
    ) -> None:
        """Writes a `sensor_msgs/CameraInfo` of a pinhole camera with a central principal point and no distortion."""
        x, y = width / 2, height / 2
        distortion, upright = np.zeros(5), np.eye(3).reshape(-1)
        intrinsic = np.array([focal_px, 0, x, 0, focal_px, y, 0, 0, 1], np.float64)
        projection = np.array([focal_px, 0, x, 0, 0, focal_px, y, 0, 0, 0, 1, 0], np.float64)
        binning = (0, 0)
        region = self._message("sensor_msgs/msg/RegionOfInterest", 0, 0, 0, 0, 0)
        fields = ("plumb_bob", distortion, intrinsic, upright, projection, *binning, region)
        header = self._header(topic, stamp_ns, frame_id)
        self._write(topic, _CAMERA_INFO, received_ns, header, height, width, *fields)

    def write_boxes(
        self,
        topic: str,
        boxes: Sequence[Box],
        *,
        stamp_ns: int,
        received_ns: int,
        frame_id: str,
        scores: Sequence[float] | None = None,
    ) -> None:
        """Writes a `vision_msgs/Detection2DArray` with one hypothesis per box; without `scores`, all scores are 1.

        In ROS 1, a name becomes its number in DETECTED_IDS, and another name -1.
        """
        header = self._header(topic, stamp_ns, frame_id)
        scored = zip(boxes, [1.0] * len(boxes) if scores is None else scores, strict=True)
        detections = [self._detection(header, box, score) for box, score in scored]
        self._write(topic, DETECTIONS, received_ns, header, detections)

    def write_label_info(
        self, topic: str, names: Sequence[str], *, stamp_ns: int, received_ns: int, frame_id: str
    ) -> None:
        """Writes a `vision_msgs/LabelInfo` with the names of classes by class id."""
        classes = [self._message("vision_msgs/msg/VisionClass", *each) for each in enumerate(names)]
        self._write(topic, LABEL_INFO, received_ns, self._header(topic, stamp_ns, frame_id), classes, 0.0)

    def write_raw(self, channel: TopicChannel, data: bytes | memoryview, received_ns: int, types: Typestore) -> None:
        """Writes a message that is already serialized for this format; `types` has its definition."""
        self._require_space(len(data))
        try:
            key = (channel.topic, channel.message_type)
            if key not in self._connections:
                self._connections[key] = add_connection(self._writer, channel, types)
            self._writer.write(self._connections[key], received_ns, data)
            self._written_bytes += len(data)
            self._commit(len(data))
        except _FAILURES as error:
            self._is_failed = True
            raise self._cut_off(error) from error
        self.message_count += 1

    def close(self) -> None:
        """Writes the index and closes the bag; further calls do nothing."""
        if not self._is_open:
            return
        self._is_open = False
        try:
            if not self._is_failed:
                storage = self._storage
                self._writer.close()
                if isinstance(storage, McapWriter) and not self._is_copied_at_end:
                    mcap_file.add_checksums(storage.path)
        except _FAILURES as error:
            self._is_failed = True
            raise self._cut_off(error) from error
        finally:
            if self._is_failed:
                # The buffers hold data that could not be written; an index after an incomplete chunk would be wrong.
                with suppress(*_FAILURES):
                    self._writer.abort()
            if self._folder is not None:
                with suppress(OSError):
                    next(self._folder.glob("*.mcap")).replace(self.path)
                    shutil.rmtree(self._folder)

    @property
    def _storage(self) -> object:
        return self._writer.storage if isinstance(self._writer, Ros2Writer) else None

    def _commit(self, size: int) -> None:
        self._uncommitted_bytes += size
        if self._uncommitted_bytes >= COMMIT_BYTES and isinstance(self._storage, Sqlite3Writer):
            self._storage.conn.commit()
            self._uncommitted_bytes = 0

    def _require_space(self, size: int) -> None:
        """Raises an error while the disk still has space for the index, so that readers can open the bag."""
        copy = self._written_bytes + size if self._is_copied_at_end else 0
        disk = shutil.disk_usage(self.path.parent)
        if not disk.total or not os.access(self.path.parent, os.W_OK):
            raise SkylaneError(f"bag {self.path}: nothing can be written in {self.path.parent}: write elsewhere")
        if disk.free < SPARE_BYTES + 2 * size + copy:
            raise SkylaneError(
                f"bag {self.path}: the disk is full; the {self.message_count} messages written before can be read: "
                f"free some space, or write elsewhere"
            )

    def _cut_off(self, error: Exception) -> SkylaneError:
        return SkylaneError(
            f"bag {self.path}: {reason_of(error)}; it has no index, and of the {self.message_count} messages written "
            f"those of the last chunk are lost: free some space, or write elsewhere; `skylane bag crop` repairs it"
        )

    def _write(self, topic: str, message_type: str, received_ns: int, *fields: object) -> None:
        message = self._message(message_type, *fields)
        serialize = self._types.serialize_ros1 if self.format is BagFormat.ROS1 else self._types.serialize_cdr
        channel = TopicChannel(topic, message_type, self.format.wire)
        self.write_raw(channel, serialize(message, message_type), received_ns, self._types)

    def _message(self, message_type: str, *fields: object) -> Any:
        make: Any = self._types.types[message_type]
        return make(*fields)

    def _header(self, topic: str, stamp_ns: int, frame_id: str) -> Any:
        time = self._message("builtin_interfaces/msg/Time", *divmod(stamp_ns, 1_000_000_000))
        if self.format is not BagFormat.ROS1:
            return self._message(HEADER, time, frame_id)
        sequence = self._sequences.get(topic, 0)
        self._sequences[topic] = sequence + 1
        return self._message(HEADER, sequence, time, frame_id)

    def _detection(self, header: object, box: Box, score: float) -> Any:
        name, left, top, width, height = box
        x, y = float(left + width / 2), float(top + height / 2)
        nowhere = self._message(
            "geometry_msgs/msg/PoseWithCovariance",
            self._message(
                "geometry_msgs/msg/Pose",
                self._message("geometry_msgs/msg/Point", 0.0, 0.0, 0.0),
                self._message("geometry_msgs/msg/Quaternion", 0.0, 0.0, 0.0, 1.0),
            ),
            np.zeros(36),
        )
        last: object
        if self.format is BagFormat.ROS1:
            centre = self._message("geometry_msgs/msg/Pose2D", x, y, 0.0)
            seen: tuple[object, ...] = (DETECTED_IDS.get(name, -1), score)
            last = self._message(IMAGE, header, 0, 0, "", 0, 0, np.zeros(0, np.uint8))
        else:
            centre = self._message("vision_msgs/msg/Pose2D", self._message("vision_msgs/msg/Point2D", x, y), 0.0)
            seen = (self._message("vision_msgs/msg/ObjectHypothesis", name, score),)
            last = ""
        result = self._message("vision_msgs/msg/ObjectHypothesisWithPose", *seen, nowhere)
        size = self._message("vision_msgs/msg/BoundingBox2D", centre, float(width), float(height))
        return self._message("vision_msgs/msg/Detection2D", header, [result], size, last)
