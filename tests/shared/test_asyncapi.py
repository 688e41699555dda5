"""The document for programs, docs/asyncapi.yaml, held to the code that speaks on the wire."""

import re
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import numpy as np
import pytest
import yaml
from jsonschema import Draft7Validator
from jsonschema.validators import extend
from msgspec.structs import replace

from shared.encoding.field_types import MAX_NS
from shared.errors import SkylaneError
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize, plan
from shared.imaging.labels import Labels
from shared.messages import clock_probes, control, frame, node_status, tensors, topics
from shared.messages.clock_probes import Echo, Probe
from shared.messages.control import ControlReply, ControlRequest, ModelEntry, ModelState, Verb
from shared.messages.frame import MAX_SIDE, FrameMessage, RequestOptions, ResultMessage, Status
from shared.messages.model_card import ModelCard, Task
from shared.messages.node_status import NodeState, NodeStatus
from shared.messages.topics import FrameId, TopicKind
from shared.stages import Stamp

DOCUMENT: dict[str, Any] = yaml.safe_load((Path(__file__).parents[2] / "docs" / "asyncapi.yaml").read_text("utf-8"))
SCHEMAS = DOCUMENT["components"]["schemas"]
KINDS = {f"{topics.PREFIX}/{kind.pattern}": kind for kind in vars(topics).values() if isinstance(kind, TopicKind)}

_ID = FrameId("car", "left", "s1", 7)
_STAMPS = (Stamp("due", "edge/car/s1", 1),)
_GEOMETRY = plan(Resize.CROP, 16, 24, 8, 12)
_CARD = ModelCard(
    "inside", "2", "ab" * 32, Task.TENSORS, 8, 12, Layout.RGB8, Resize.CROP, Labels(("a",), ((1, 2, 3),)),
    trained=True, outputs=("depth",), engine="tensorflow", precision="fp32", cold_ms=90.5, warm_ms=7,
)  # fmt: skip
_FRAME = FrameMessage(
    _ID, "inside", Layout.RGB8, (8, 12, 3), "raw", _GEOMETRY, 5, b"x", version="2", budget_ms=100,
    want=RequestOptions("zstd", "frame", 3, ("depth",)), stamps=_STAMPS,
)  # fmt: skip
_MASK = ResultMessage(
    _ID, 1, Status.ANSWERED, "w", "", "road", "1", "ab" * 32, "openvino bf16", geometry=_GEOMETRY, shape=(8, 12),
    data=b"x", batch_size=1, stamps=_STAMPS,
)  # fmt: skip
_ENTRY = ModelEntry("inside", "2", ModelState.CURRENT)


class Spoken(NamedTuple):
    """A message as the code writes it, and what reads it."""

    payload: bytes
    read: Callable[[bytes], object]


SPOKEN = {
    "frame": Spoken(frame.pack_frame(_FRAME), frame.unpack_frame),
    "mask": Spoken(frame.pack_result(_MASK), frame.unpack_result),
    "status": Spoken(
        node_status.pack_status(NodeStatus(NodeState.ONLINE, "s1", 4, (_CARD,))), node_status.unpack_status
    ),
    "probe": Spoken(clock_probes.pack_probe(Probe("s1", 1, 2)), clock_probes.unpack_probe),
    "echo": Spoken(clock_probes.pack_echo(Echo("s1", 1, 2, 3, 4, "cloud/w/s2")), clock_probes.unpack_echo),
    "request": Spoken(
        control.pack_request(ControlRequest("me", "n1", Verb.LOAD, "inside", "2")),
        lambda payload: control.unpack_request(payload, Verb.LOAD),
    ),
    "reply": Spoken(control.pack_reply(ControlReply("n1", "w", models=(_ENTRY,), card=_CARD)), control.unpack_reply),
    "result": Spoken(tensors.encode({"a": np.zeros(2)}, "zstd"), lambda payload: tensors.decode(payload, "zstd")),
}


def _is_text(_: object, value: object) -> bool:
    return isinstance(value, str | bytes)  # MessagePack's bin; JSON Schema knows no bytes.


Validator: Any = extend(Draft7Validator, type_checker=Draft7Validator.TYPE_CHECKER.redefine("string", _is_text))  # type: ignore[no-untyped-call]


def _closed(schema: Any) -> Any:
    """The same schema, in which no key is unknown."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    return closed | {"additionalProperties": False} if isinstance(schema.get("properties"), dict) else closed


def _resolved(reference: str) -> Any:
    """What a reference within the document points to."""
    node: Any = DOCUMENT
    for part in reference.removeprefix("#/").split("/"):
        node = node[part]
    return node


def _references(node: Any) -> list[str]:
    if isinstance(node, dict):
        return [node["$ref"]] if "$ref" in node else [each for value in node.values() for each in _references(value)]
    return [each for value in node for each in _references(value)] if isinstance(node, list) else []


def test_every_topic_is_a_channel() -> None:
    """With the names in it as its parameters; and no channel is there that nobody speaks on."""
    assert {channel["address"] for channel in DOCUMENT["channels"].values()} == set(KINDS)
    for channel in DOCUMENT["channels"].values():
        assert list(channel["parameters"]) == re.findall(r"{(\w+)}", channel["address"])


def test_every_channel_travels_as_its_topic_does() -> None:
    """Quality of service and retention are half of what a message promises."""
    served = set()
    for operation in DOCUMENT["operations"].values():
        channel = _resolved(operation["channel"]["$ref"])
        kind = KINDS[channel["address"]]
        binding = operation["bindings"]["mqtt"]
        assert (binding["qos"], binding["retain"]) == (kind.qos, kind.retained)
        assert operation["action"] in ("send", "receive")
        served.add(channel["address"])
    assert served == set(KINDS)


def test_every_reference_leads_somewhere() -> None:
    """A broken one stops the tools that read it."""
    references = _references(DOCUMENT)
    assert len(references) > 50
    for reference in references:
        assert isinstance(_resolved(reference), dict)
    for schema in SCHEMAS.values():
        Draft7Validator.check_schema(schema)


@pytest.mark.parametrize("name", SPOKEN)
def test_what_the_code_writes_is_what_the_document_says(name: str) -> None:
    """Key by key, none more and none less, however deep."""
    document = _closed({"$ref": f"#/components/schemas/{name}", "components": {"schemas": SCHEMAS}})
    written = msgpack.unpackb(SPOKEN[name].payload)
    assert [error.message for error in Validator(document).iter_errors(written)] == []
    assert set(SCHEMAS[name]["properties"]) == set(written)


@pytest.mark.parametrize("name", SPOKEN)
def test_what_the_document_requires_is_what_the_code_cannot_do_without(name: str) -> None:
    """And what it leaves free may be left out."""
    written = msgpack.unpackb(SPOKEN[name].payload)
    for key in written:
        left = {other: value for other, value in written.items() if other != key}
        if key in SCHEMAS[name]["required"]:
            with pytest.raises(SkylaneError, match=key):
                SPOKEN[name].read(msgpack.packb(left))
        elif (name, key) != ("mask", "shape"):  # A mask needs it, the other tasks have none.
            SPOKEN[name].read(msgpack.packb(left))


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        (SCHEMAS["task"]["enum"], Task),
        (SCHEMAS["layout"]["enum"], Layout),
        (SCHEMAS["card"]["properties"]["resize"]["enum"], Resize),
        (SCHEMAS["mask"]["properties"]["status"]["enum"], Status),
        (SCHEMAS["status"]["properties"]["state"]["enum"], NodeState),
        (SCHEMAS["reply"]["properties"]["models"]["items"]["properties"]["state"]["enum"], ModelState),
        (DOCUMENT["channels"]["control"]["parameters"]["verb"]["enum"], Verb),
    ],
)
def test_every_choice_is_told(told: list[str], kind: type[StrEnum]) -> None:
    """In the code's own words."""
    assert told == [choice.value for choice in kind]


def test_the_limits_are_the_codes() -> None:
    """Who keeps to the document is not refused."""
    assert SCHEMAS["nanoseconds"]["maximum"] == MAX_NS
    assert SCHEMAS["card"]["properties"]["height"]["maximum"] == MAX_SIDE
    assert SCHEMAS["frame"]["properties"]["shape"]["items"]["maximum"] == MAX_SIDE
    assert SCHEMAS["result"]["properties"]["tensors"]["maxItems"] == tensors.MAX_TENSORS
    contents = {name: told.get("contentType") for name, told in DOCUMENT["components"]["messages"].items()}
    assert contents["frame"] == frame.FRAME_CONTENT_TYPE
    assert contents["mask"] == frame.RESULT_CONTENT_TYPE
    assert contents["request"] == contents["reply"] == control.CONTROL_CONTENT_TYPE


def test_an_answer_of_another_task_has_no_shape() -> None:
    """The one key whose need depends on another."""
    answer = replace(_MASK, task=Task.DETECTION, shape=None)
    assert frame.unpack_result(frame.pack_result(answer)) == answer
