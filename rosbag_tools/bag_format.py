"""The formats and compressions a bag is written in, and the path each goes to."""

import shutil
from enum import StrEnum
from pathlib import Path
from typing import Any

from rosbags.rosbag1 import Writer as Ros1Writer
from rosbags.rosbag2 import StoragePlugin
from rosbags.rosbag2 import Writer as Ros2Writer
from rosbags.rosbag2.enums import CompressionFormat, CompressionMode

from rosbag_tools.image_messages import Wire
from shared.errors import SkylaneError, UnknownNameError


class BagFormat(StrEnum):
    """How a bag's data file is laid out."""

    ROS1 = "ros1"
    SQLITE3 = "sqlite3"
    MCAP = "mcap"

    @property
    def wire(self) -> Wire:
        """How messages are spelled in it."""
        return Wire.ROS1 if self is BagFormat.ROS1 else Wire.CDR


BY_FILE = "zstd-file"
_ROS2_MODES = {"none": CompressionMode.NONE, "zstd-message": CompressionMode.MESSAGE, BY_FILE: CompressionMode.FILE}
# "zstd" is what each format does best.
_COMPRESSIONS: dict[BagFormat, dict[str, Any]] = {
    BagFormat.ROS1: {"none": None, "bz2": Ros1Writer.CompressionFormat.BZ2, "lz4": Ros1Writer.CompressionFormat.LZ4},
    BagFormat.SQLITE3: {"zstd": CompressionMode.MESSAGE, **_ROS2_MODES},
    BagFormat.MCAP: {"zstd": CompressionMode.STORAGE, **_ROS2_MODES},
}
COMPRESSIONS = tuple(dict.fromkeys(name for names in _COMPRESSIONS.values() for name in names))

_DATA_SUFFIXES = (".db3", ".mcap", ".db3.zstd", ".mcap.zstd", ".db3-wal", ".db3-shm", ".db3-journal")


class BagPathError(SkylaneError):
    """A bag cannot be written to a path."""


def format_for(path: Path) -> BagFormat:
    """The format a path asks for: ROS 1 where it is named .bag, else MCAP."""
    return BagFormat.ROS1 if path.suffix == ".bag" else BagFormat.MCAP


def new_writer(path: Path, bag_format: BagFormat, compression: str) -> Ros1Writer | Ros2Writer:
    """A writer of rosbags, not yet open.

    Raises:
        UnknownNameError: the format has no such compression.
        BagPathError: the path's name does not fit the format, or something is there.
    """
    compressions = _COMPRESSIONS[bag_format]
    if compression not in compressions:
        raise UnknownNameError(f"compression for {bag_format}:", compression, compressions)
    if bag_format is BagFormat.ROS1 and path.suffix != ".bag":
        raise BagPathError(f"a ROS 1 bag is a file named .bag: write to {path.name}.bag instead of {path}")
    if bag_format is not BagFormat.ROS1 and path.suffix in (".bag", ".db3", ".mcap"):
        raise BagPathError(f"a ROS 2 bag is a folder: write to {path.with_suffix('')} instead of {path}")
    if path.exists():
        raise BagPathError(f"{path} exists: choose another name, or --force to replace it")
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


def remove_bag(path: Path) -> None:
    """Delete the bag at `path`, if there is one.

    Raises:
        BagPathError: what is there is no bag, and stays.
    """
    if path.is_dir() and not path.is_symlink():
        foreign = [each.name for each in path.iterdir() if not _belongs_to_bag(each)]
        if foreign:
            raise BagPathError(f"folder {path} is no bag, for it holds {foreign[0]}: it is not replaced")
        shutil.rmtree(path)
    elif path.exists():
        if path.suffix != ".bag":
            raise BagPathError(f"{path} is no bag by its name: it is not replaced")
        path.unlink()


def _belongs_to_bag(path: Path) -> bool:
    return path.is_file() and (path.name == "metadata.yaml" or path.name.endswith(_DATA_SUFFIXES))
