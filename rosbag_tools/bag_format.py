"""Formats and compressions in which bags are written, and the path that each format needs."""

import os
import shutil
from enum import StrEnum
from mimetypes import guess_type
from pathlib import Path
from typing import Any

from rosbags.interfaces import (
    Connection,
    Qos,
    QosDurability,
    QosHistory,
    QosLiveliness,
    QosReliability,
    QosTime,
)
from rosbags.rosbag1 import Writer as Ros1Writer
from rosbags.rosbag2 import StoragePlugin
from rosbags.rosbag2 import Writer as Ros2Writer
from rosbags.rosbag2.enums import CompressionFormat, CompressionMode
from rosbags.typesys.store import Typestore

from rosbag_tools.records import Serialization, TopicChannel
from shared.errors import SkylaneError, UnknownNameError


class BagFormat(StrEnum):
    """Format of a bag's data file."""

    ROS1 = "ros1"
    SQLITE3 = "sqlite3"
    MCAP = "mcap"

    @property
    def wire(self) -> Serialization:
        """The serialization of messages in this format."""
        return Serialization.ROS1 if self is BagFormat.ROS1 else Serialization.CDR


BY_FILE = "zstd-file"
_ROS2_MODES = {"none": CompressionMode.NONE, "zstd-message": CompressionMode.MESSAGE, BY_FILE: CompressionMode.FILE}
# "zstd" stands for the best Zstandard compression of a ROS 2 format.
_COMPRESSIONS: dict[BagFormat, dict[str, Any]] = {
    BagFormat.ROS1: {"none": None, "bz2": Ros1Writer.CompressionFormat.BZ2, "lz4": Ros1Writer.CompressionFormat.LZ4},
    BagFormat.SQLITE3: {"zstd": CompressionMode.MESSAGE, **_ROS2_MODES},
    BagFormat.MCAP: {"zstd": CompressionMode.STORAGE, **_ROS2_MODES},
}
COMPRESSIONS = tuple(dict.fromkeys(name for names in _COMPRESSIONS.values() for name in names))

_FOREVER = QosTime(2147483647, 4294967295)
_LATCHED = Qos(
    QosHistory.KEEP_LAST,
    1,
    QosReliability.RELIABLE,
    QosDurability.TRANSIENT_LOCAL,
    _FOREVER,
    _FOREVER,
    QosLiveliness.AUTOMATIC,
    _FOREVER,
    avoid_ros_namespace_conventions=False,
)

_FILE_SUFFIXES = (".bag", ".db3", ".mcap")
_DATA_SUFFIXES = (".db3", ".mcap", ".db3.zstd", ".mcap.zstd", ".db3-wal", ".db3-shm", ".db3-journal")


def chosen_format(path: Path, name: str | None, source: BagFormat = BagFormat.MCAP) -> BagFormat:
    """Returns the format with this name, or without a name the format for the path: ROS 1 for .bag, MCAP for .mcap.

    A folder gets the format of the bag that is copied, `source`, if that format can be in a folder.

    Raises:
        UnknownNameError: there is no such format.
        SkylaneError: the path has the suffix of another kind of file, such as a text.
    """
    if name is None:
        if path.suffix == ".bag":
            return BagFormat.ROS1
        if path.suffix not in _FILE_SUFFIXES and (kind := guess_type(path.name)[0]):
            raise SkylaneError(
                f"{path} is the name of a {kind} file, not of a bag: end it in .bag (ROS 1) or .mcap, or leave "
                f"{path.suffix} out for a folder (ROS 2)"
            )
        return BagFormat.MCAP if path.suffix == ".mcap" or source is BagFormat.ROS1 else source
    if name not in list(BagFormat):
        raise UnknownNameError("bag format", name, BagFormat)
    return BagFormat(name)


def new_writer(path: Path, bag_format: BagFormat, compression: str) -> Ros1Writer | Ros2Writer:
    """Returns a writer of the library rosbags that is not open yet; `BagWriter` gives it a folder for a single .mcap.

    Raises:
        UnknownNameError: the format has no such compression.
        SkylaneError: the path's name does not fit the format.
    """
    compressions = _COMPRESSIONS[bag_format]
    if compression not in compressions:
        raise UnknownNameError(f"compression for {bag_format}:", compression, compressions)
    if bag_format is BagFormat.ROS1 and path.suffix != ".bag":
        raise SkylaneError(f"a ROS 1 bag is a file named .bag: write to {path.name}.bag instead of {path}")
    if bag_format is not BagFormat.ROS1 and path.suffix in _FILE_SUFFIXES:
        raise SkylaneError(f"a bag of {bag_format} is a folder: write to {path.with_suffix('')} instead of {path}")
    if bag_format is BagFormat.ROS1:
        ros1 = Ros1Writer(path)
        if compressions[compression] is not None:
            ros1.set_compression(compressions[compression])
        return ros1
    plugin = StoragePlugin.MCAP if bag_format is BagFormat.MCAP else StoragePlugin.SQLITE3
    # Version 8 of the metadata: what Humble and its successors read.
    ros2 = Ros2Writer(path, version=8, storage_plugin=plugin)
    ros2.set_compression(compressions[compression], CompressionFormat.ZSTD)
    return ros2


def add_connection(writer: Ros1Writer | Ros2Writer, channel: TopicChannel, types: Typestore) -> Connection:
    """Adds a channel to an open writer of the library rosbags, with its latching in the form of ROS 1 or ROS 2."""
    if isinstance(writer, Ros1Writer):
        return writer.add_connection(
            channel.topic, channel.message_type, typestore=types, latching=1 if channel.is_latched else None
        )
    offered = [_LATCHED] if channel.is_latched else []
    return writer.add_connection(channel.topic, channel.message_type, typestore=types, offered_qos_profiles=offered)


def check_target(path: Path, *, overwrite: bool) -> None:
    """Checks that a bag can be written to `path`.

    Raises:
        SkylaneError: the path exists, and is not a bag or may not be replaced.
    """
    if not os.path.lexists(path):  # A broken link counts as existing.
        return
    if not overwrite:
        raise SkylaneError(f"{path} exists: choose another name, or --force to replace it")
    if path.is_dir() and not path.is_symlink():
        foreign = [each.name for each in path.iterdir() if not _belongs_to_bag(each)]
        if foreign:
            raise SkylaneError(
                f"folder {path} is not a bag, because it contains {foreign[0]}: choose another path, it is not replaced"
            )
    elif path.suffix not in (".bag", ".mcap"):
        raise SkylaneError(f"{path} does not have the name of a bag: choose another path, it is not replaced")


def remove_bag(path: Path) -> None:
    """Deletes the bag at `path`, if it exists; raises a SkylaneError if it is not a bag."""
    check_target(path, overwrite=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _belongs_to_bag(path: Path) -> bool:
    return path.is_file() and (path.name == "metadata.yaml" or path.name.endswith(_DATA_SUFFIXES))
