"""Reads metadata.yaml, which describes the data files of a ROS 2 bag, and compares its statements with them.

`bag` checks which of the listed files exist.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import AliasPath, BaseModel, Field

from rosbag_tools.reading.data_file import DataFile
from rosbag_tools.records import TopicChannel
from shared.config import ConfigError, read_yaml
from shared.sanitize import printable

METADATA_NAME = "metadata.yaml"

_SHOWN = 3  # Maximum number of topics or files that a note names.
_NAME_LENGTH = 80
_TOLERANCE_NS = 1_000  # Some writers round times to microseconds.


class FalseClaim(NamedTuple):
    """A statement of a bag about itself that is not true."""

    place: str  # Source of the statement: "metadata.yaml" or "folder".
    reason: str  # Completes a sentence that begins with the place.

    def __str__(self) -> str:
        return f"{self.place} {self.reason}"


class _TopicCount(BaseModel):
    name: str = Field(validation_alias=AliasPath("topic_metadata", "name"))
    type: str = Field(validation_alias=AliasPath("topic_metadata", "type"))
    message_count: int


class _FileCount(BaseModel):
    path: str
    message_count: int


class Metadata(BaseModel):
    """The statements of versions 1 to 9 that can be compared with the data; None: not stated."""

    relative_file_paths: tuple[str, ...]
    storage_identifier: str | None = None
    compression_mode: str | None = None
    message_count: int | None = None
    topics_with_message_count: tuple[_TopicCount, ...] = ()
    start_ns: int | None = Field(None, validation_alias=AliasPath("starting_time", "nanoseconds_since_epoch"))
    duration_ns: int | None = Field(None, validation_alias=AliasPath("duration", "nanoseconds"))
    files: tuple[_FileCount, ...] = ()


class _Document(BaseModel):
    rosbag2_bagfile_information: Metadata


def read_metadata(folder: Path) -> Metadata | FalseClaim | None:
    """Returns the metadata of a folder, a FalseClaim if it cannot be used, or None if the file is missing."""
    path = folder / METADATA_NAME
    if not path.is_file():
        return FalseClaim(METADATA_NAME, "is not a file") if path.exists() else None
    try:
        return read_yaml(path, _Document).rosbag2_bagfile_information
    except ConfigError as error:
        problem = f"{error.key}: {error.problem}" if error.key else error.problem
        return FalseClaim(METADATA_NAME, f"cannot be used: {printable(problem)}")


def base_name(path: str) -> str:
    """Returns the last part of a listed path, which may be one of another machine."""
    return re.split(r"[/\\]", path)[-1]


def named(names: Sequence[str]) -> str:
    """Returns names from a bag for a message: printable, and the first ones of many."""
    shown = ", ".join(printable(name)[:_NAME_LENGTH] for name in names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown


def false_claims(
    metadata: Metadata, parts: Mapping[str, DataFile], counts: Mapping[TopicChannel, int], *, is_complete: bool
) -> tuple[FalseClaim, ...]:
    """Returns the statements about the data files and their messages that are not true.

    Args:
        metadata: The statements.
        parts: The data files by their paths in the folder.
        counts: The number of messages by channel, of all files.
        is_complete: True if all listed files exist; otherwise times and counts by topic are not compared.
    """
    formats, total = {part.format for part in parts.values()}, sum(counts.values())
    reasons = []
    if metadata.storage_identifier in ("sqlite3", "mcap") and formats != {metadata.storage_identifier}:
        reasons.append(f"states the storage {metadata.storage_identifier}: the files are {', '.join(sorted(formats))}")
    mode, compressed = (metadata.compression_mode or "").upper(), [name for name in parts if name.endswith(".zstd")]
    has_copies = any(Path(f"{part.path}.zstd").exists() for part in parts.values())
    if (mode == "NONE" and compressed) or (mode == "FILE" and not compressed and not has_copies):
        reasons.append(
            f"states the compression mode {mode}: {'some' if compressed else 'none'} of the files are compressed"
        )
    if metadata.message_count not in (None, total):
        reasons.append(f"counts {metadata.message_count} messages, and the data files have {total}")
    reasons += _wrong_counts(metadata, parts, counts if is_complete else {})
    if is_complete and total:
        start_ns = min(part.start_ns for part in parts.values() if part.counts.total())
        span_ns = max(part.end_ns for part in parts.values()) - start_ns
        for what, value, real in (("start", metadata.start_ns, start_ns), ("duration", metadata.duration_ns, span_ns)):
            if value is not None and abs(value - real) > _TOLERANCE_NS:
                reasons.append(f"states a {what} of {value} ns, and the messages have {real} ns")
    return tuple(FalseClaim(METADATA_NAME, reason) for reason in reasons)


def _wrong_counts(metadata: Metadata, parts: Mapping[str, DataFile], counts: Mapping[TopicChannel, int]) -> list[str]:
    """Compares the numbers of messages of each file, and of each topic and type unless `counts` is empty."""
    stated: Counter[str] = Counter()
    found: Counter[str] = Counter()
    known = {key.removesuffix(".zstd"): part for path, part in parts.items() for key in (base_name(path), path)}
    for file in metadata.files:
        name = file.path.removesuffix(".zstd")
        if part := known.get(name, known.get(base_name(name))):
            stated[file.path], found[file.path] = file.message_count, part.counts.total()
    if counts and metadata.topics_with_message_count:
        for topic in metadata.topics_with_message_count:
            stated[f"{topic.name.lstrip('/')} ({topic.type.replace('/msg/', '/')})"] += topic.message_count
        for channel, count in counts.items():
            found[f"{channel.topic.lstrip('/')} ({channel.type.replace('/msg/', '/')})"] += count
    wrong = [name for name in {**stated, **found} if stated[name] != found[name]]
    reasons = [
        f"counts {stated[name]} messages of {named([name])}, and the data files have {found[name]}" for name in wrong
    ]
    return [*reasons[:_SHOWN], *[f"is wrong about {len(wrong) - _SHOWN} more of them"] * (len(wrong) > _SHOWN)]
