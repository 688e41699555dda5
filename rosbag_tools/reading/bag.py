"""Opens bags of any format: ROS 1 files, ROS 2 folders with or without metadata, and single .db3 or .mcap files."""

import hashlib
import heapq
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from rosbag_tools.reading.data_file import DataFile, ForeignBagError, unfold_file
from rosbag_tools.reading.records import Damage, Message, TopicChannel
from shared.config import ConfigError, load_mapping
from shared.errors import SkylaneError, UnknownNameError, suggestion
from shared.hashing import file_sha256
from shared.natural_order import natural_key

_SUFFIXES = (".db3", ".mcap", ".db3.zstd", ".mcap.zstd")


class MissingBagError(SkylaneError):
    """There is no bag at a path."""


class DamagedBagError(SkylaneError):
    """Part of a bag could not be read."""

    def __init__(self, path: Path, damage: Damage, read: str) -> None:
        self.path = path
        self.damage = damage
        super().__init__(
            f"{path} is damaged at {damage.place}: {damage.reason}; {read} read. "
            f"`skylane bag verify` lists all damage, `skylane bag crop` writes the intact messages into a new bag"
        )


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic with its type and number of messages."""

    channel: TopicChannel
    count: int

    @property
    def name(self) -> str:
        """The name as it is in the bag, with or without a leading slash."""
        return self.channel.topic


class Bag:
    """An open bag.

    Attributes:
        path: The path as given.
        files: The data files in order.
        format: "ros1", "sqlite3" or "mcap".
        topics: The topics, sorted by name.
        start_ns, end_ns: Recording times of the first and last message; 0 if there is none.
        index_damage: Why the index of a file could not be used; empty if all could.

    Raises:
        MissingBagError: nothing is at `path`, or a folder without data files.
        ForeignBagError: the file is not a bag.
        DecompressionError: a file that is compressed as a whole is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stack = ExitStack()
        self._first_messages: dict[str, Message | None] = {}
        try:
            self.files = _data_files(path)
            folder = Path(self._stack.enter_context(TemporaryDirectory(prefix="skylane-bag-")))
            self._parts = [self._open(file, folder) for file in self.files]
        except OSError as error:
            self._stack.close()
            raise MissingBagError(f"bag {path} cannot be read: {error.strerror}") from error
        except BaseException:
            self._stack.close()
            raise
        self.format = self._parts[0].format
        counts: Counter[TopicChannel] = sum((part.counts for part in self._parts), Counter())
        for part in self._parts:
            counts.update(dict.fromkeys(part.counts, 0))  # Adding counters drops topics without messages.
        self.topics = tuple(sorted((Topic(*item) for item in counts.items()), key=lambda topic: topic.name))
        filled = [part for part in self._parts if part.counts.total()]
        self.start_ns = min((part.start_ns for part in filled), default=0)
        self.end_ns = max((part.end_ns for part in filled), default=0)
        self.index_damage = next((part.index_damage for part in self._parts if part.index_damage), "")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def sha256(self) -> str:
        """SHA-256 of the data file, or of the names and digests of several. Computing it reads all files."""
        if len(self.files) == 1:
            return file_sha256(self.files[0])
        digest = hashlib.sha256()
        for file in self.files:
            digest.update(file.name.encode("utf-8", "surrogateescape") + b"\0" + bytes.fromhex(file_sha256(file)))
        return digest.hexdigest()

    @property
    def size_bytes(self) -> int:
        """Total size of the data files."""
        return sum(file.stat().st_size for file in self.files)

    def find(self, names: Sequence[str]) -> tuple[Topic, ...]:
        """Returns the topics with these names, given with or without the leading slash.

        Raises:
            UnknownNameError: the bag has no such topic; the nearest names are offered.
        """
        by_name = {topic.name.lstrip("/"): topic for topic in self.topics}
        found = []
        for name in names:
            topic = by_name.get(name.lstrip("/"))
            if topic is None:
                raise UnknownNameError(f"topic in {self.path.name}:", name, [each.name for each in self.topics])
            found.append(topic)
        return tuple(found)

    def messages(
        self, topics: Collection[str] | None = None, start_ns: int | None = None, stop_ns: int | None = None
    ) -> Iterator[Message | Damage]:
        """Yields the messages of `topics` (None: all) recorded from `start_ns` on and before `stop_ns`.

        Messages in the index come in the order of their times. Messages that a damaged index does not contain follow
        in the order of the file, together with the damage.
        """
        if len(self._parts) == 1:
            return self._parts[0].messages(topics, start_ns, stop_ns)
        return heapq.merge(
            *(part.messages(topics, start_ns, stop_ns) for part in self._parts), key=lambda item: item.time_ns
        )

    def first_message(self, topic: str) -> Message | None:
        """Returns the first readable message of a topic; it is read once and kept."""
        if topic not in self._first_messages:
            found = (item for item in self.messages({topic}) if isinstance(item, Message))
            self._first_messages[topic] = next(found, None)
        return self._first_messages[topic]

    def scan(self) -> Iterator[Message | Damage]:
        """Yields every message in the order of the files, with its position, and all damage."""
        for part in self._parts:
            yield from part.scan()

    def close(self) -> None:
        """Closes the files."""
        self._stack.close()

    def _open(self, file: Path, folder: Path) -> DataFile:
        part = DataFile(unfold_file(file, folder))
        self._stack.callback(part.close)
        return part


def _data_files(path: Path) -> tuple[Path, ...]:
    if not path.exists():
        beside = sorted(path.parent.iterdir()) if path.parent.is_dir() else []
        near = [each.name for each in beside if _looks_like_bag(each)]
        raise MissingBagError(f"there is no bag at {path}{suggestion(path.name, near) if near else ''}")
    if not path.is_dir():
        return (path,)
    files = [file for file in path.iterdir() if file.name.endswith(_SUFFIXES) and file.is_file()]
    if not files:
        raise MissingBagError(f"folder {path} contains no .db3 and no .mcap file: give the folder of a ROS 2 bag")
    listed = _listed(path / "metadata.yaml")
    return tuple(sorted((file for file in files if file.name in listed), key=lambda file: listed.index(file.name))) or (
        tuple(sorted(files, key=lambda file: natural_key(file.name)))
    )


def _looks_like_bag(path: Path) -> bool:
    return path.name.endswith((".bag", *_SUFFIXES)) or (path / "metadata.yaml").is_file()


def _listed(metadata: Path) -> list[str]:
    """Returns the names of the data files in the bag's metadata; empty if it is missing or damaged."""
    try:
        paths = load_mapping(metadata)["rosbag2_bagfile_information"]["relative_file_paths"]
        return [Path(str(each)).name for each in paths]
    except (ConfigError, KeyError, TypeError):
        return []


__all__ = ["Bag", "DamagedBagError", "ForeignBagError", "MissingBagError", "Topic"]
