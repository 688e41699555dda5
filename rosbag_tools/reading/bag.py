"""Opens bags of any format: single files, ROS 2 folders with or without metadata, and folders of split ROS 1 bags."""

import hashlib
import heapq
import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from rosbag_tools.reading.data_file import DataFile, ForeignBagError, unfold_file
from rosbag_tools.reading.metadata import (
    METADATA_NAME,
    FalseClaim,
    Metadata,
    base_name,
    false_claims,
    named,
    read_metadata,
)
from rosbag_tools.records import Damage, Message, TopicChannel
from shared.errors import SkylaneError, UnknownNameError, suggestion
from shared.files import file_sha256, natural_key

_log = logging.getLogger(__name__)

_SUFFIXES = (".db3", ".mcap", ".db3.zstd", ".mcap.zstd")
_BACKUP = ".orig.bag"  # `rosbag reindex` keeps the file under this name.

# Names of the parts of one recording, by `rosbag record --split`, with the date if it adds one, and by rosbag2.
_PART = re.compile(
    r"(?P<name>.*?)(_?\d{4}-\d\d-\d\d-\d\d-\d\d-\d\d)?_(?P<number>\d+)(?P<suffix>\.bag|\.db3|\.mcap)(\.zstd)?",
    re.ASCII | re.DOTALL,
)
_OVERLAP_NS = 10**9  # A part may end up to this much later than the next one begins.


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
        message_count: Number of messages of all topics.
        start_ns, end_ns: Recording times of the first and last message; 0 without messages.
        index_damage: Why the index of a file could not be used; empty if all could.
        file_claims: False statements of metadata.yaml and of file names about the files.
        content_claims: False statements of metadata.yaml about the messages.
        notes: Both, and other remarks on which files are read, one line each.

    Raises:
        SkylaneError: `path` does not exist, or is a folder without data files;
            the files of a folder are different recordings.
        ForeignBagError: the file is not a bag.
        DecompressionError: a file that is compressed as a whole is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stack = ExitStack()
        self._first_messages: dict[str, Message | None] = {}
        try:
            found = _find(path)
            self.files = found.files
            folder = Path(self._stack.enter_context(TemporaryDirectory(prefix="skylane-bag-")))
            self._parts = [self._open(file, folder) for file in self.files]
            if found.metadata is None:
                self._check_order()
        except OSError as error:
            self._stack.close()
            raise SkylaneError(f"bag {path} cannot be read: {error.strerror}") from error
        except BaseException:
            self._stack.close()
            raise
        self.format = self._parts[0].format
        counts: Counter[TopicChannel] = sum((part.counts for part in self._parts), Counter())
        for part in self._parts:
            counts.update(dict.fromkeys(part.counts, 0))  # Adding counters drops topics without messages.
        self.topics = tuple(sorted((Topic(*item) for item in counts.items()), key=lambda topic: topic.name))
        filled = [part for part in self._parts if part.counts.total()]
        self.message_count = counts.total()
        self.start_ns = min((part.start_ns for part in filled), default=0)
        self.end_ns = max((part.end_ns for part in filled), default=0)
        self.index_damage = next((part.index_damage for part in self._parts if part.index_damage), "")
        self.file_claims = tuple(found.false_claims)
        self.content_claims: tuple[FalseClaim, ...] = ()
        if found.metadata is not None:
            parts = {str(file.relative_to(path)): part for file, part in zip(self.files, self._parts, strict=True)}
            self.content_claims = false_claims(found.metadata, parts, counts, is_complete=found.is_complete)
        self.notes = (*map(str, self.file_claims), *map(str, self.content_claims), *found.remarks)
        self._unlogged = [*self.notes]

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
            UnknownNameError: the bag has no such topic; the message has the nearest names.
        """
        by_name = {topic.name.lstrip("/"): topic for topic in self.topics}
        found = []
        for name in names:
            topic = by_name.get(name.lstrip("/"))
            if topic is None:
                raise UnknownNameError(f"topic in {self.path.name}:", name, [topic.name for topic in self.topics])
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
        """Yields every message in the order of the files, with its position, all damage and wrong statements."""
        for part in self._parts:
            yield from part.checked_scan()

    def log_notes(self) -> None:
        """Logs each note once, for commands that do not show the notes."""
        while self._unlogged:
            _log.warning("%s: %s", self.path.name, self._unlogged.pop(0))

    def close(self) -> None:
        """Closes the files."""
        self._stack.close()

    def _check_order(self) -> None:
        """Raises a SkylaneError if files overlap in time; parts of one recording follow one another."""
        times = (
            (part.start_ns, part.end_ns, file.name)
            for part, file in zip(self._parts, self.files, strict=True)
            if part.counts.total()
        )
        for (_, end_ns, earlier), (start_ns, _, later) in pairwise(sorted(times)):
            if start_ns < end_ns - _OVERLAP_NS:
                both = named([earlier, later])
                raise SkylaneError(f"{both} of folder {self.path} were recorded at the same time: give one of them")

    def _open(self, file: Path, folder: Path) -> DataFile:
        try:
            part = DataFile(unfold_file(file, folder))
        except ForeignBagError as error:  # The original error names the decompressed copy.
            raise ForeignBagError(file, error.problem) from error
        self._stack.callback(part.close)
        return part


@dataclass(slots=True)
class _Found:
    """The data files of a bag, and the remarks and false statements about them."""

    files: tuple[Path, ...]
    remarks: list[str] = field(default_factory=list)
    false_claims: list[FalseClaim] = field(default_factory=list)
    metadata: Metadata | None = None  # Metadata that lists at least one of the files; otherwise None.
    is_complete: bool = True  # True if all listed files exist.

    def claim(self, place: str, reason: str) -> None:
        self.false_claims.append(FalseClaim(place, reason))


def is_copy(name: str, names: Collection[str]) -> bool:
    """Returns True for a file that repeats another one of its folder: compressed, or kept by `rosbag reindex`."""
    if name.endswith(_BACKUP):
        return name.removesuffix(_BACKUP) + ".bag" in names
    return name.endswith(_SUFFIXES) and name.endswith(".zstd") and name.removesuffix(".zstd") in names


def _find(path: Path) -> _Found:
    if not path.exists():
        beside = sorted(path.parent.iterdir()) if path.parent.is_dir() else []
        near = [each.name for each in beside if _looks_like_bag(each)]
        raise SkylaneError(f"there is no bag at {path}{suggestion(path.name, near) if near else ''}")
    if path.is_file():
        return _Found((path,), _rest_of_recording(path))
    if not path.is_dir():
        raise SkylaneError(f"{path} is neither a file nor a folder: give a bag")
    found = _Found(())
    entries = sorted(path.iterdir(), key=lambda entry: natural_key(entry.name))
    bags = [entry for entry in entries if entry.name.endswith((*_SUFFIXES, ".bag", ".bag.active"))]
    _leave_out(found, bags, lambda file: not file.is_file(), "not a file that can be read")
    names = {file.name for file in bags}
    _leave_out(found, bags, lambda file: is_copy(file.name, names), "copies of files that are read")
    _leave_out(found, bags, lambda file: file.suffix == ".active", "an interrupted recording: give it by itself")
    if any(file.name.endswith(_SUFFIXES) for file in bags):
        _leave_out(found, bags, lambda file: file.suffix == ".bag", "ROS 1 bags beside a ROS 2 bag: give one of them")
    metadata = read_metadata(path)
    if isinstance(metadata, FalseClaim):
        found.false_claims.append(metadata)
    elif metadata is not None:
        _take_listed(found, path, bags, metadata)
    if not found.files and not bags:
        reasons = "; ".join([*map(str, found.false_claims), *found.remarks, "give a bag or its folder"])
        raise SkylaneError(f"folder {path} contains no .db3 and no .mcap file, and no .bag: {reasons}")
    if not found.files:
        _take_all(found, path, bags)
    return found


def _leave_out(found: _Found, files: list[Path], is_out: Callable[[Path], bool], reason: str) -> None:
    """Removes files from `files`, and adds a remark."""
    if out := [file for file in files if is_out(file)]:
        files[:] = [file for file in files if not is_out(file)]
        found.remarks.append(f"not read: {named([file.name for file in out])} ({reason})")


def _take_listed(found: _Found, folder: Path, files: Sequence[Path], metadata: Metadata) -> None:
    """Takes the files that the metadata lists, in its order. Names the others, which `ros2 bag play` ignores."""
    by_name = {file.name: file for file in files}
    taken, missing = [], []
    for listed in metadata.relative_file_paths:
        name, inside = base_name(listed), folder / listed
        is_below = name != listed and listed.endswith(_SUFFIXES) and inside.is_file()
        if is_below and inside.resolve().is_relative_to(folder.resolve()):
            by_name.setdefault(listed, inside)
        candidates = (listed, name, f"{name}.zstd", name.removesuffix(".zstd"))
        file = next((by_name[candidate] for candidate in candidates if candidate in by_name), None)
        taken.append(file) if file is not None else missing.append(listed)
    found.files, found.is_complete = tuple(dict.fromkeys(taken)), not missing
    found.metadata = metadata if taken else None
    unlisted = sorted({file.name for file in files} - {file.name for file in taken})
    treatment = "not read: give one by itself" if taken else "read, because no listed file is there"
    if missing:
        found.claim(METADATA_NAME, f"lists files that are not there: {named(missing)}")
    if unlisted:
        found.claim(METADATA_NAME, f"does not list files of its folder: {named(unlisted)} ({treatment})")


def _take_all(found: _Found, folder: Path, files: Sequence[Path]) -> None:
    """Takes all files, in the order of the numbers in their names."""
    found.files = tuple(files)
    numbers = _part_numbers([file.name for file in files])
    if len(numbers) == len(files):
        if gap := _gap(numbers):
            found.claim("folder", f"has parts of a recording{gap}")
    elif len(files) > 1 and files[0].suffix == ".bag":
        names = named([file.name for file in files])
        raise SkylaneError(f"the files of folder {folder} are not parts of one recording: give one of {names}")
    elif len(files) > 1:
        found.remarks.append(f"read as one recording, without metadata.yaml: {named([each.name for each in files])}")


def _part_numbers(names: Sequence[str]) -> list[int]:
    """Returns the sorted numbers in the names of parts of one recording; empty if the names are not such parts."""
    parts = [_PART.fullmatch(name) for name in names]
    numbers = {int(part["number"]) for part in parts if part}
    is_one = None not in parts and len({part["name"] for part in parts if part}) == 1
    return sorted(numbers) if is_one else []


def _gap(numbers: Sequence[int]) -> str:
    """Returns a text on the missing numbers between sorted part numbers; empty if they are complete."""
    if gaps := numbers[-1] - numbers[0] + 1 - len(numbers):
        first = next(number for number, next_number in pairwise(numbers) if next_number > number + 1) + 1
        return f" numbered {numbers[0]} to {numbers[-1]} without {gaps}: the first is {first}"
    return ""


def _rest_of_recording(file: Path) -> list[str]:
    """Returns a remark if the given file is only one of several files of a recording."""
    metadata, gap = read_metadata(file.parent), ""
    if isinstance(metadata, Metadata):
        listed = {base_name(path).removesuffix(".zstd") for path in metadata.relative_file_paths}
        parts = len(listed) if file.name.removesuffix(".zstd") in listed else 0
    else:
        near = (each.name for each in file.parent.iterdir()) if _PART.fullmatch(file.name) else ()
        pairs = (_part_numbers([file.name, name]) for name in near if name.endswith(file.suffix))
        parts = len(numbers := sorted({number for pair in pairs for number in pair}))
        gap = _gap(numbers) if numbers else ""
    if parts > 1:
        return [f"{named([file.name])} is one of {parts} files of a recording{gap}: the others are not read"]
    return []


def _looks_like_bag(path: Path) -> bool:
    return path.name.endswith((".bag", *_SUFFIXES)) or (path / METADATA_NAME).is_file()


__all__ = ["Bag", "DamagedBagError", "ForeignBagError", "Topic"]
