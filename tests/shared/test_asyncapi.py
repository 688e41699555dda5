"""docs/reference/asyncapi.yaml agrees with the code that writes and reads messages."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import numpy as np
import pytest
import yaml
from jsonschema import Draft7Validator
from jsonschema.validators import extend

from shared.clock import Deadline
from shared.errors import SkylaneError
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize, plan
from shared.imaging.labels import Labels
from shared.messages import clock_probes, control, frame, load, node_metrics, node_status, tensors, topics
from shared.messages.clock_probes import Echo, Probe
from shared.messages.control import ControlReply, ControlRequest, ModelEntry, ModelState, Verb
from shared.messages.frame import FrameMessage, RequestOptions, ResultMessage, Status
from shared.messages.load import LoadReport, WorkerLoad
from shared.messages.model_card import ModelCard
from shared.messages.msgpack_reader import MAX_NS, MAX_SIDE
from shared.messages.node_metrics import Quantiles, VehicleMetrics, WorkerMetrics
from shared.messages.node_status import NodeState, NodeStatus
from shared.messages.topics import FrameId, TopicKind
from shared.stages import Stamp
from shared.task import TASKS

DOCUMENT: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parents[2] / "docs" / "reference" / "asyncapi.yaml").read_text("utf-8")
)
SCHEMAS = DOCUMENT["components"]["schemas"]
KINDS = {f"{topics.PREFIX}/{kind.pattern}": kind for kind in vars(topics).values() if isinstance(kind, TopicKind)}

_ID = FrameId("car", "left", "s1", 7)
_STAMPS = (Stamp("due", "edge/car/s1", 1),)
_GEOMETRY = plan(Resize.CROP, 16, 24, 8, 12)
_CARD = ModelCard(
    "inside", "2", "ab" * 32, "tensors", 8, 12, Layout.RGB8, Resize.CROP, Labels(("a",), ((1, 2, 3),)),
    trained=True, outputs=("depth",), engine="tensorflow", precision="fp32", cold_ms=90.5, warm_ms=7,
)  # fmt: skip
_FRAME = FrameMessage(
    _ID, "inside", Layout.RGB8, (8, 12, 3), "raw", _GEOMETRY, 5, b"x", version="2", deadline=Deadline.after_ms(100),
    options=RequestOptions("zstd", "frame", 3, ("depth",)), stamps=_STAMPS,
)  # fmt: skip
_LOAD = WorkerLoad(queue=3, free=61, wait_ms=120.5, answer_ms=30.0, spacing_ms=15.0)
_MASK = ResultMessage(
    _ID, 1, Status.ANSWERED, "w", "", "road", "1", "ab" * 32, "openvino bf16", geometry=_GEOMETRY, shape=(8, 12),
    data=b"x", batch_size=1, load=_LOAD, stamps=_STAMPS,
)  # fmt: skip
_ENTRY = ModelEntry("inside", "2", ModelState.CURRENT)


class Example(NamedTuple):
    """An encoded message and its decoder."""

    payload: bytes
    read: Callable[[bytes], object]


EXAMPLES = {
    "frame": Example(frame.pack_frame(_FRAME), frame.unpack_frame),
    "mask": Example(frame.pack_result(_MASK), frame.unpack_result),
    "status": Example(
        node_status.pack_status(NodeStatus(NodeState.ONLINE, "s1", 4, (_CARD,))), node_status.unpack_status
    ),
    "load": Example(load.pack_load(LoadReport("s1", {"inside": _LOAD})), load.unpack_load),
    "workerMetrics": Example(
        node_metrics.pack_worker_metrics(
            WorkerMetrics(
                "s1", 60.0, {"answered": 9}, Quantiles(1.5, None), Quantiles(20.0, 30.5), 90.0, 1 << 30, None, None
            )
        ),
        node_metrics.unpack_worker_metrics,
    ),
    "vehicleMetrics": Example(
        node_metrics.pack_vehicle_metrics(
            VehicleMetrics("s1", "inside", 12.5, {"answered": 9, "dropped": 1}, "window", Quantiles(80.0, None), 2, 0.3)
        ),
        node_metrics.unpack_vehicle_metrics,
    ),
    "probe": Example(clock_probes.pack_probe(Probe("s1", 1, 2)), clock_probes.unpack_probe),
    "echo": Example(clock_probes.pack_echo(Echo("s1", 1, 2, 3, 4, "cloud/w/s2")), clock_probes.unpack_echo),
    "request": Example(
        control.pack_request(ControlRequest("me", "n1", Verb.LOAD, "inside", "2")),
        lambda payload: control.unpack_request(payload, Verb.LOAD),
    ),
    "reply": Example(control.pack_reply(ControlReply("n1", "w", models=(_ENTRY,), card=_CARD)), control.unpack_reply),
    "result": Example(tensors.encode({"a": np.zeros(2)}, "zstd"), lambda payload: tensors.decode(payload, "zstd")),
}


def _is_text(_: object, value: object) -> bool:
    return isinstance(value, str | bytes)  # JSON Schema has no type for MessagePack's bin.


Validator: Any = extend(Draft7Validator, type_checker=Draft7Validator.TYPE_CHECKER.redefine("string", _is_text))  # type: ignore[no-untyped-call]


def _closed(schema: Any) -> Any:
    """Returns the schema with unknown keys forbidden."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    return closed | {"additionalProperties": False} if isinstance(schema.get("properties"), dict) else closed


def _resolved(reference: str) -> Any:
    """Returns the target of a reference within the document."""
    node: Any = DOCUMENT
    for part in reference.removeprefix("#/").split("/"):
        node = node[part]
    return node


def _references(node: Any) -> list[str]:
    if isinstance(node, dict):
        return [node["$ref"]] if "$ref" in node else [each for value in node.values() for each in _references(value)]
    return [each for value in node for each in _references(value)] if isinstance(node, list) else []


def test_every_topic_is_a_channel() -> None:
    """The names in the topic are the parameters of the channel."""
    assert {channel["address"] for channel in DOCUMENT["channels"].values()} == set(KINDS)
    for channel in DOCUMENT["channels"].values():
        assert list(channel["parameters"]) == re.findall(r"{(\w+)}", channel["address"])


def test_every_channel_has_the_qos_and_retention_of_its_topic() -> None:
    """Every topic has an operation."""
    used = set()
    for operation in DOCUMENT["operations"].values():
        channel = _resolved(operation["channel"]["$ref"])
        kind = KINDS[channel["address"]]
        binding = operation["bindings"]["mqtt"]
        assert (binding["qos"], binding["retain"]) == (kind.qos, kind.retained)
        assert operation["action"] in ("send", "receive")
        used.add(channel["address"])
    assert used == set(KINDS)


def test_every_reference_has_a_target() -> None:
    """Tools fail on a broken reference."""
    references = _references(DOCUMENT)
    assert len(references) > 50
    for reference in references:
        assert isinstance(_resolved(reference), dict)
    for schema in SCHEMAS.values():
        Draft7Validator.check_schema(schema)


@pytest.mark.parametrize("name", EXAMPLES)
def test_encoded_messages_match_the_schema(name: str) -> None:
    """They have all keys of the schema and no others, at any depth."""
    document = _closed({"$ref": f"#/components/schemas/{name}", "components": {"schemas": SCHEMAS}})
    written = msgpack.unpackb(EXAMPLES[name].payload)
    assert [error.message for error in Validator(document).iter_errors(written)] == []
    assert set(SCHEMAS[name]["properties"]) == set(written)


@pytest.mark.parametrize("name", EXAMPLES)
def test_required_keys_are_those_that_the_decoder_needs(name: str) -> None:
    """All other keys are optional."""
    written = msgpack.unpackb(EXAMPLES[name].payload)
    for key in written:
        remaining = {other: value for other, value in written.items() if other != key}
        if key in SCHEMAS[name]["required"]:
            with pytest.raises(SkylaneError, match=key):
                EXAMPLES[name].read(msgpack.packb(remaining))
        elif (name, key) != ("mask", "shape"):  # Only required for masks.
            EXAMPLES[name].read(msgpack.packb(remaining))


@pytest.mark.parametrize(
    ("choices", "kind"),
    [
        (SCHEMAS["task"]["enum"], TASKS),
        (SCHEMAS["layout"]["enum"], Layout),
        (SCHEMAS["card"]["properties"]["resize"]["enum"], Resize),
        (SCHEMAS["mask"]["properties"]["status"]["enum"], Status),
        (SCHEMAS["status"]["properties"]["state"]["enum"], NodeState),
        (SCHEMAS["reply"]["properties"]["models"]["items"]["properties"]["state"]["enum"], ModelState),
        (DOCUMENT["channels"]["control"]["parameters"]["verb"]["enum"], Verb),
    ],
)
def test_every_choice_is_listed(choices: list[str], kind: Iterable[str]) -> None:
    """The values and their order agree."""
    assert choices == list(kind)


def test_the_limits_are_those_of_the_code() -> None:
    """A message within the limits of the document is accepted."""
    assert SCHEMAS["nanoseconds"]["maximum"] == MAX_NS
    assert SCHEMAS["card"]["properties"]["height"]["maximum"] == MAX_SIDE
    assert SCHEMAS["frame"]["properties"]["shape"]["items"]["maximum"] == MAX_SIDE
    assert SCHEMAS["result"]["properties"]["tensors"]["maxItems"] == tensors.MAX_TENSORS
    contents = {name: message.get("contentType") for name, message in DOCUMENT["components"]["messages"].items()}
    assert contents["frame"] == frame.FRAME_CONTENT_TYPE
    assert contents["mask"] == frame.RESULT_CONTENT_TYPE
    assert contents["request"] == contents["reply"] == control.CONTROL_CONTENT_TYPE
