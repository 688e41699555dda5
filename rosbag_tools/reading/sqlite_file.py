"""Scans rosbag2 databases in row order: those that the library rosbags cannot read, and for `bag verify`."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from rosbag_tools.reading.decompression import MAX_MESSAGE_BYTES, DecompressionError, unfold_message
from rosbag_tools.records import Damage, Message, Serialization, TopicChannel

MAGIC = b"SQLite format 3\0"

# Finds views and computed columns, which can return endless rows that take no space in the file.
_COMPUTED = """
    SELECT name FROM sqlite_master
    WHERE type = 'view' OR (type = 'table' AND (rootpage <= 0 OR sql NOT LIKE 'CREATE TABLE%'))
    UNION ALL
    SELECT tables.name FROM sqlite_master AS tables, pragma_table_xinfo(tables.name) AS columns
    WHERE tables.type = 'table' AND columns.hidden > 1
"""


def scan(path: Path) -> Iterator[Message | Damage]:
    """Yields every message in row order, and all damage; if the rest cannot be read, the last item says so."""
    row = 0
    try:
        with closing(_open(path)) as database:
            if computed := _computed(database):
                yield Damage("schema", f"{computed} is computed when it is read; no recorder writes such tables")
                return
            channels = _channels(database)
            for row, topic, time_ns, data in database.execute("SELECT id, topic_id, timestamp, data FROM messages"):
                yield _message(row, channels.get(topic), time_ns, data)
    except (sqlite3.Error, OverflowError, MemoryError) as error:
        yield Damage(f"after row {row}", f"the database is damaged or cut off: {error}")


def is_computed(path: Path) -> bool:
    """Returns True if a table of the database is computed when it is read, and can therefore be endless."""
    try:
        with closing(_open(path)) as database:
            return bool(_computed(database))
    except (sqlite3.Error, OverflowError, MemoryError):
        return False  # The library rosbags cannot read it either.


def has_log(path: Path) -> bool:
    """Returns True if a killed recorder left rows in a write-ahead log next to the database."""
    log = path.with_name(f"{path.name}-wal")
    return log.exists() and log.stat().st_size > 0


def _open(path: Path) -> sqlite3.Connection:
    # No file may be created next to a bag, not even a lock, except to read a write-ahead log.
    mode = "mode=ro" if has_log(path) else "immutable=1"
    database = sqlite3.connect(f"{path.resolve().as_uri()}?{mode}", uri=True)
    database.text_factory = lambda text: text.decode(errors="replace")
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_MESSAGE_BYTES)
    database.execute("PRAGMA trusted_schema=OFF")
    database.execute("PRAGMA writable_schema=ON")  # Otherwise SQLite refuses a truncated file.
    return database


def _computed(database: sqlite3.Connection) -> str:
    """Returns the name of a table that is a view, virtual, or has a computed column; empty if all tables are stored."""
    found = database.execute(_COMPUTED).fetchone()
    return str(found[0])[:80] if found else ""


def _channels(database: sqlite3.Connection) -> dict[object, TopicChannel]:
    definitions: dict[object, tuple[str, bool]] = {}
    if database.execute("SELECT 1 FROM sqlite_master WHERE name = 'message_definitions'").fetchone():
        rows = database.execute("SELECT topic_type, encoding, encoded_message_definition FROM message_definitions")
        definitions = {name: (str(definition), str(encoding).endswith("idl")) for name, encoding, definition in rows}
    return {
        key: TopicChannel(str(topic), str(name), Serialization.CDR, *definitions.get(name, ("", False)))
        for key, topic, name in database.execute("SELECT id, name, type FROM topics")
    }


def _message(row: int, channel: TopicChannel | None, time_ns: object, data: object) -> Message | Damage:
    place = f"row {row}"
    if channel is None or not isinstance(time_ns, int) or not isinstance(data, bytes):
        return Damage(place, "the row has no known topic, time or message")
    try:
        return Message(channel, time_ns, unfold_message(data), place)
    except DecompressionError as error:
        return Damage(place, str(error), channel, time_ns)
