"""Reads metadata.yaml, by which the recorder of a ROS 2 bag describes its data files, and compares it with them."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from pydantic import AliasPath, BaseModel, Field

from rosbag_tools.reading.data_file import DataFile
from rosbag_tools.reading.records import TopicChannel
from shared.config import ConfigError, read_yaml
from shared.sanitize import printable

METADATA_NAME = "metadata.yaml"

_SHOWN = 3  # Topics or files that one note names.
_NAME_LENGTH = 80
_TOLERANCE_NS = 1_000  # Some writers round times to microseconds.


class FalseClaim(NamedTuple):
    """A statement of a bag about itself that is not true."""

    place: str  # What makes the statement: "metadata.yaml", or the name of a file.
    reason: str  # Continues the place to a sentence.

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
    """Returns the metadata of a folder, why it cannot be used, or None if there is none."""
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
    metadata: Metadata,
    parts: Mapping[str, DataFile],
    counts: Mapping[TopicChannel, int],
    *,
    is_complete: bool,
    has_twins: bool,
) -> tuple[FalseClaim, ...]:
    """Returns the statements that are not true of the data files.

    Args:
        metadata: The statements.
        parts: The data files by their names in the folder.
        counts: The number of messages by channel, of all files.
        is_complete: Whether all listed files are there; otherwise statements about the whole differ anyway.
        has_twins: Whether compressed copies of the files lie beside them.
    """
    reasons = []
    formats = {part.format for part in parts.values()}
    if metadata.storage_identifier in ("sqlite3", "mcap") and formats != {metadata.storage_identifier}:
        reasons.append(f"states the storage {metadata.storage_identifier}: the files are {', '.join(sorted(formats))}")
    is_compressed = any(name.endswith(".zstd") for name in parts)
    if is_compressed and metadata.compression_mode in ("", "NONE", "none"):
        reasons.append("states that the files are not compressed, and they are")
    if not is_compressed and metadata.compression_mode in ("FILE", "file") and not has_twins:
        reasons.append("states that the files are compressed, and they are not")
    total = sum(counts.values())
    if metadata.message_count not in (None, total):
        reasons.append(f"counts {metadata.message_count} messages, and the data files have {total}")
    reasons += _first(_wrong_files(metadata, parts), "files")
    filled = [part for part in parts.values() if part.counts.total()]
    if is_complete:
        reasons += _first(_wrong_topics(metadata, counts), "topics")
    if is_complete and filled:
        start_ns = min(part.start_ns for part in filled)
        duration_ns = max(part.end_ns for part in filled) - start_ns
        if metadata.start_ns is not None and abs(metadata.start_ns - start_ns) > _TOLERANCE_NS:
            reasons.append(f"states a start at {metadata.start_ns} ns: the first message was recorded at {start_ns} ns")
        if metadata.duration_ns is not None and abs(metadata.duration_ns - duration_ns) > _TOLERANCE_NS:
            reasons.append(f"states a duration of {metadata.duration_ns} ns: the messages span {duration_ns} ns")
    return tuple(FalseClaim(METADATA_NAME, reason) for reason in reasons)


def _wrong_files(metadata: Metadata, parts: Mapping[str, DataFile]) -> Iterator[str]:
    for file in metadata.files:
        name = base_name(file.path)
        candidates = (file.path, name, f"{name}.zstd", name.removesuffix(".zstd"))
        part = next((parts[each] for each in candidates if each in parts), None)
        if part is not None and part.counts.total() != file.message_count:
            yield f"counts {file.message_count} messages in {named([name])}, which has {part.counts.total()}"


def _wrong_topics(metadata: Metadata, counts: Mapping[TopicChannel, int]) -> Iterator[str]:
    has: Counter[str] = Counter()
    types: dict[str, str] = {}
    for channel, count in counts.items():
        has[channel.topic.lstrip("/")] += count
        types[channel.topic.lstrip("/")] = channel.type.replace("/msg/", "/")
    stated: Counter[str] = Counter()
    for topic in metadata.topics_with_message_count:
        name = topic.name.lstrip("/")
        stated[name] += topic.message_count
        if has[name] and types[name] != topic.type.replace("/msg/", "/"):
            yield f"states the type {named([topic.type])} for {named([name])}: it is {named([types[name]])}"
    for name in stated | has if stated else ():
        if stated[name] != has[name]:
            yield f"counts {stated[name]} messages on {named([name])}, and the data files have {has[name]}"


def _first(reasons: Iterator[str], things: str) -> Iterator[str]:
    """Yields the first reasons, and how many follow."""
    yield from islice(reasons, _SHOWN)
    if more := sum(1 for _ in reasons):
        yield f"is wrong about {more} more {things}"
