"""docs/reference/limits.md has the values of the code, and names options that exist."""

import dataclasses
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from skylane.cli import skylane

ROOT = Path(__file__).parents[1]
DOCUMENT = (ROOT / "docs" / "reference" / "limits.md").read_text(encoding="utf-8")
BROKERS = ("mosquitto/development.conf", "mosquitto/secured.conf")

# Where the code has the numbers of the page, as `module:name` or `file.conf:key`.
PLACES = {
    "a message, bytes": ("shared.messages.msgpack_reader:MAX_MESSAGE_BYTES",),
    "pixels of an image, and of a mask of the frame's size": ("cloud.config:CloudConfig.max_pixels",),
    "pixels of an image file": ("shared.imaging.image_codecs:ImageLimits.max_pixels",),
    "bytes of an encoded image": ("shared.imaging.image_codecs:ImageLimits.max_bytes",),
    "pixels of a video frame (without MJPEG)": ("shared.imaging.video_bitstream:MAX_VIDEO_PIXELS",),
    "detections of an answer": ("shared.messages.results:MAX_DETECTIONS",),
    "frames that wait": ("cloud.config:CloudConfig.max_frames",),
    "bytes of frames that wait": ("cloud.config:CloudConfig.max_bytes",),
    "a batch in an engine's process (`--isolate`), seconds": ("cloud.config:CloudConfig.isolate_hang_s",),
    "frames of a vehicle that cost an engine its process, in a row": ("cloud.serving.admission:STRIKES",),
    "clients of `--metrics`, and of Rerun's page, at once": ("shared.network.http_server:_MAX_CLIENTS",),
    "a call, and its answer, bytes": ("cloud.config:CloudConfig.max_message_bytes",),
    "a body in JSON, bytes": ("cloud.gateway.http.json_body:MAX_JSON_BYTES",),
    "calls answered at a time": ("cloud.config:CloudConfig.max_calls",),
    "HTTP connections, times the calls answered at a time": ("cloud.gateway.limits:MAX_CONNECTIONS_PER_CALL",),
    "seconds for the head of a request": ("cloud.gateway.limits:GatewayTimeouts.header_s",),
    "seconds for a body": ("cloud.gateway.limits:GatewayTimeouts.body_s",),
    "seconds to take an answer": ("cloud.gateway.limits:GatewayTimeouts.send_s",),
    "gRPC connections": ("cloud.gateway.limits:MAX_GRPC_CONNECTIONS",),
    "seconds without a request on a stream of inferences": ("cloud.gateway.limits:GatewayTimeouts.stream_idle_s",),
    "frames unanswered": ("edge.config:EdgeConfig.window",),
    "due frames of a camera that wait": ("edge.config:EdgeConfig.queue",),
    "frames read before they are due": ("edge.config:EdgeConfig.read_ahead_queue_size",),
    "time without an answer, seconds": ("edge.config:EdgeConfig.answer_timeout_s",),
    "age of a result that is presented, ms": ("edge.config:EdgeConfig.present_max_age_ms",),
    "publications of a node that the broker has not acknowledged": ("shared.mqtt.paho_client:MAX_INFLIGHT",),
    "messages that wait in the broker for one client": tuple(f"{path}:max_queued_messages" for path in BROKERS),
    "their bytes": tuple(f"{path}:max_queued_bytes" for path in BROKERS),
    "a message in the broker, bytes": tuple(f"{path}:message_size_limit" for path in BROKERS),
    "clients of the secured broker": ("mosquitto/secured.conf:max_connections",),
    "a YAML file, bytes": ("shared.config:MAX_YAML_BYTES",),
    "classes of a model": ("shared.imaging.labels:MAX_LABELS",),
    "classes of a mask": ("shared.imaging.labels:MAX_MASK_LABELS",),
    "a message of a bag, decompressed, bytes": ("rosbag_tools.reading.decompression:MAX_MESSAGE_BYTES",),
    "bytes a second of a download, over 30 s": ("shared.network.download:_LEAST_BYTES_PER_S",),
}


class LimitRow(NamedTuple):
    """A row of the page."""

    subject: str
    limit: str
    set_by: str

    @property
    def value(self) -> int | None:
        """The number of the limit; None for a rule in words."""
        return int(self.limit.replace(",", "")) if re.fullmatch(r"[\d,]+", self.limit) else None


def rows() -> Iterator[LimitRow]:
    """Yields the rows of all tables."""
    for line in DOCUMENT.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == 4 and cells[0] != "what":
            yield LimitRow(*cells[:3])


ROWS = list(rows())


def _value(place: str) -> Any:
    """Returns the value in the code or in a broker's configuration."""
    location, _, name = place.partition(":")
    if location.endswith(".conf"):
        (found,) = re.findall(rf"^{name} (\d+)$", (ROOT / location).read_text(encoding="utf-8"), re.MULTILINE)
        return int(found)
    value: Any = import_module(location)
    for part in name.split("."):
        fields = getattr(value, "model_fields", {})
        if part in fields:
            value = fields[part].default
        elif dataclasses.is_dataclass(value) and part in (
            named := {each.name: each for each in dataclasses.fields(value)}
        ):
            value = named[part].default
        else:
            value = getattr(value, part)
    return value


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.subject)
def test_the_page_has_the_values_of_the_code(row: LimitRow) -> None:
    """Operators size machines by the page."""
    found = {_value(place) for place in PLACES.get(row.subject, ())}
    assert found == (set() if row.value is None else {row.value})


def test_every_place_belongs_to_a_row() -> None:
    """A row that was renamed would no longer be compared."""
    assert PLACES.keys() - {row.subject for row in ROWS} == set()


@pytest.mark.parametrize("command", ["edge play", "cloud serve"])
def test_every_flag_of_the_page_exists(command: str) -> None:
    """A renamed flag would leave a limit without a way to set it."""
    shown = CliRunner().invoke(skylane, [*command.split(), "--help-all"]).output
    named = {
        flag
        for row in ROWS
        for flag in re.findall(r"`(--[a-z-]+)`", row.set_by)
        if f"`skylane {command}`" in row.set_by
    }
    assert named
    for flag in named:
        assert re.search(rf"{flag}\b", shown), flag
