import resource
from dataclasses import replace
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.clock import Deadline
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize, plan
from shared.imaging.labels import Labels
from shared.messages.frame import (
    MAX_FRAME_STAMPS,
    FrameMessage,
    RequestOptions,
    ResultMessage,
    Status,
    pack_frame,
    pack_result,
    unpack_frame,
    unpack_result,
)
from shared.messages.load import WorkerLoad
from shared.messages.msgpack_reader import MAX_MESSAGE_BYTES, MAX_NS, MAX_SIDE, MessageError
from shared.messages.node_status import NodeState, NodeStatus, pack_status, unpack_status
from shared.messages.topics import FrameId
from shared.stages import Stamp
from shared.task import TASKS
from tests.support.tiny_model import CARD

NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
IDS = st.builds(FrameId, NAMES, NAMES, NAMES, st.integers(0, 10**18 - 1))
LOADS = st.builds(WorkerLoad, *[st.integers(0, 1 << 20)] * 2, *[st.floats(0, 86_400_000)] * 3)
PRINTABLE = st.text(max_size=20).filter(str.isprintable)
STAMPS = st.lists(st.builds(Stamp, st.text(max_size=20), st.text(max_size=40), st.integers(0, MAX_NS)), max_size=16)
SIDES = st.integers(1, 4096)
GEOMETRIES = st.builds(plan, st.sampled_from(Resize), SIDES, SIDES, SIDES, SIDES)
FRAME = FrameMessage(
    id=FrameId("car", "left", "s1", 7),
    model="road",
    layout=Layout.RGB8,
    shape=(2, 3, 3),
    codec="raw",
    geometry=plan(Resize.CROP, 4, 6, 2, 3),
    stamp_ns=5,
    data=bytes(18),
    deadline=Deadline.after_ms(100, 0),
    stamps=(Stamp("due", "edge/car/s1", 1),),
)
RESULT = ResultMessage(id=FRAME.id, attempt=1, status=Status.ANSWERED, worker="w", shape=(2, 3), data=b"xyz")


@st.composite
def _frames(draw: st.DrawFn) -> FrameMessage:
    layout = draw(st.sampled_from(Layout))
    return FrameMessage(
        id=draw(IDS),
        model=draw(NAMES),
        layout=layout,
        shape=layout.shape(draw(st.integers(1, MAX_SIDE)), draw(st.integers(1, MAX_SIDE))),
        codec=draw(PRINTABLE),
        geometry=draw(GEOMETRIES),
        stamp_ns=draw(st.integers(0, MAX_NS)),
        data=draw(st.binary(max_size=50)),
        attempt=draw(st.integers(1, 100)),
        deadline=Deadline.after_ms(draw(st.none() | st.integers(0, 86_400_000)), 5),
        version=draw(st.none() | NAMES),
        options=RequestOptions(
            draw(PRINTABLE),
            draw(st.sampled_from(["model", "frame"])),
            draw(st.none() | st.integers(1, 256)),
            tuple(draw(st.lists(NAMES, max_size=4))),
        ),
        stamps=tuple(draw(STAMPS)),
    )


@given(_frames())
def test_frame_round_trips(message: FrameMessage) -> None:
    """Every field is preserved."""
    assert unpack_frame(pack_frame(message, 5), 5) == message


@given(
    st.builds(
        ResultMessage,
        id=IDS,
        attempt=st.integers(1, 100),
        status=st.sampled_from(Status),
        worker=NAMES,
        reason=PRINTABLE,
        engine=PRINTABLE,
        task=st.sampled_from([*TASKS]),
        geometry=st.none() | GEOMETRIES,
        shape=st.tuples(SIDES, SIDES),
        data=st.binary(max_size=50),
        batch_size=st.integers(0, 4096),
        load=st.none() | LOADS,
        stamps=STAMPS.map(tuple),
    )
)
def test_result_round_trips(message: ResultMessage) -> None:
    """Every field is preserved."""
    assert unpack_result(pack_result(message)) == message


def test_classifier_may_have_1000_classes_but_not_a_mask() -> None:
    """Public classifiers have 1,000 classes; a uint8 mask cannot represent them."""
    labels = Labels(tuple(f"class_{place}" for place in range(1000)), ((0, 0, 0),) * 1000)
    card = replace(CARD, task="classification", labels=labels)
    status = NodeStatus(NodeState.ONLINE, "s1", 4, cards=(card,) * 16)
    assert unpack_status(pack_status(status)) == status
    mask = replace(card, task="segmentation")
    with pytest.raises(MessageError, match="1000 classes of a mask: give at most 256"):
        unpack_status(pack_status(replace(status, cards=(mask,))))


def test_status_with_cards_round_trips() -> None:
    """The status is the vehicle's only source of information about models."""
    warm = replace(CARD, task="detection", engine="openvino", precision="bf16", cold_ms=812.5, warm_ms=9.25)
    nameless = replace(CARD, task="tensors", labels=Labels((), ()), outputs=("depth", "flow"))
    status = NodeStatus(NodeState.ONLINE, "s1", 64, (CARD, warm, nameless))
    assert unpack_status(pack_status(status)) == status


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"v": 2}, "'v': version 2 is not supported: send version 1"),
        ({"v": "x" * 4000}, "'v': version 'xxxx"),
        ({"v": [1] * 200}, "'v': version list"),
        ({"layout": "cmyk"}, "'layout': expected one of bgr8, .*, not 'cmyk'"),
        ({"layout": "mono8"}, "'shape': .* does not fit layout mono8"),
        ({"shape": [2, 3]}, r"'shape': \[2, 3\] does not fit layout rgb8"),
        ({"shape": [2]}, r"'shape': expected \[height, width\] or \[height, width, 3\], not list of 1"),
        ({"shape": [0, 3, 3]}, r"'shape': \[0\]: expected an integer from 1 to 16384, not 0"),
        ({"shape": [3, MAX_SIDE + 1, 3]}, r"'shape': \[1\]: .*, not 16385"),
        ({"shape": [2.0, 3, 3]}, "not 2.0"),
        ({"shape": [b"x" * 1000] * 3}, "not bytes of 1000"),
        ({"dtype": "float64"}, "'dtype': layout rgb8 has uint8"),
        ({"want": {"size": "huge"}}, "'want': size: expected one of frame, model, not 'huge'"),
        ({"want": {"mask_codec": 7}}, "'want': mask_codec: expected a text of up to 4096 characters, not 7"),
        ({"want": []}, "'want': expected a map, not list of 0"),
        ({"want": {"top_k": 0}}, "'want': top_k: expected an integer from 1 to 1024, not 0"),
        ({"want": {"outputs": "all"}}, "'want': outputs: expected a list of up to 256 items, not 'all'"),
        ({"want": {"outputs": ["a", "a/b"]}}, r"'want': outputs\[1\]: expected a name of 1 to 64 of .*, not 'a/b'"),
        ({"version": "a/b"}, "'version': expected a version of 1 to 64 of .*, not 'a/b'"),
        ({"version": "1\n"}, r"'version': expected a version .*, not '1\\n'"),
        ({"attempt": 0}, "'attempt': expected an integer from 1 to 100, not 0"),
        ({"budget_ms": -1}, "'budget_ms': expected an integer from 0 to 86400000, not -1"),
        ({"frame_stamp_ns": -1}, "'frame_stamp_ns'"),
        ({"model": "a/b"}, "'model': expected a name .*, not 'a/b'"),
        ({"data": "text"}, "'data': expected binary data, not 'text'"),
        ({"stamps": [["due", "edge", -1]]}, r"'stamps': \[0\]\[2\]: expected an integer from 0 to .*, not -1"),
        ({"stamps": [["due", "edge"]]}, r"'stamps': \[0\]: expected \[stage, node, at_ns\], not list of 2"),
        ({"stamps": [["due", "edge", 1]] * 33}, "'stamps': expected a list of up to 32 items, not list of 33"),
        ({"stamps": [["due", "x" * 201, 1]]}, r"'stamps': \[0\]\[1\]: expected a text of up to 200 characters"),
        (
            {"stamps": [["due", "edge", 1], ["x" * 65, "edge", 1]]},
            r"\[1\]\[0\]: expected a text of up to 64 characters",
        ),
        ({"stamps": [["due", "edge", 1]] * 300}, "not a MessagePack map"),
        ({"geometry": None}, "'geometry': expected a map, not None"),
        ({"geometry": {"source_height": 1}}, "'geometry': source_width: missing"),
        (
            {"geometry": {"source_height": 65536}},
            "'geometry': source_height: expected an integer from 0 to 65535, not 65536",
        ),
        (
            {"geometry": dict.fromkeys(msgspec.structs.asdict(FRAME.geometry), 1) | {"crop_top": 9}},
            "'geometry': geometry's crop_height",
        ),
        ({"codec": None}, "'codec': expected a text of up to 4096 characters, not None"),
        ({b"x": 1}, r"not a valid message: Expected `str` - at `key` in `\$`"),
    ],
)
def test_error_names_the_invalid_field_and_the_frame(change: dict[Any, Any], reason: str) -> None:
    """The worker replies `rejected` to the sender, so the error must carry the frame id and the reason."""
    fields = msgpack.unpackb(pack_frame(FRAME)) | change
    with pytest.raises(MessageError, match=reason) as caught:
        unpack_frame(msgpack.packb(fields))
    assert caught.value.frame_id in (FRAME.id, None)
    assert caught.value.frame_id == FRAME.id or "not a" in reason
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "frame_id", [5, None, True, 1.5, b"a/b/c/1", ["a"], {"a": 1}, "", "a/b/c", "a/b/c/x", "x" * 4000]
)
@pytest.mark.parametrize("version", [1, 2])
def test_invalid_frame_id_is_left_out_of_the_error(frame_id: object, version: int) -> None:
    """Any value may be in the field `id`; the only effect is a MessageError."""
    fields = msgpack.unpackb(pack_frame(FRAME)) | {"id": frame_id, "v": version}
    with pytest.raises(MessageError) as caught:
        unpack_frame(msgpack.packb(fields))
    assert caught.value.frame_id is None


@pytest.mark.parametrize("key", ["layout", "status", "task", "size"])
@pytest.mark.parametrize(
    "value",
    ["a - at `$.nonexistent`", "missing required field `foo`", " - at `$.id`", " - at `$.\u00b2`", "Object missing"],
)
def test_sender_cannot_fake_the_error_text(key: str, value: str) -> None:
    """msgspec quotes the invalid value in its error, before the path of the field."""
    unpack, fields = (
        (unpack_result, pack_result(RESULT)) if key in ("status", "task") else (unpack_frame, pack_frame(FRAME))
    )
    change = {"want": {"size": value}} if key == "size" else {key: value}
    with pytest.raises(MessageError, match=f"{key}.*: expected .*, not ") as caught:
        unpack(msgpack.packb(msgpack.unpackb(fields) | change))
    assert caught.value.frame_id == FRAME.id


@pytest.mark.parametrize(
    "repeated",
    [{"stamps": [["due", "edge", 1]] * 32}, {"later": 1}, {"want": {"outputs": [["a"]] * 256}}],
    ids=["stamps", "unknown", "lists"],
)
def test_repeated_keys_are_rejected_early(repeated: dict[str, Any]) -> None:
    """Decoding 8 MB of repeated keys took a second while holding the GIL."""
    once = msgpack.packb(repeated)[1:]
    count = (1 << 20) // len(once)
    with pytest.raises(MessageError, match="not a MessagePack map"):
        unpack_frame(b"\xdf" + (15 + count).to_bytes(4, "big") + once * count + pack_frame(FRAME)[1:])


def test_messages_are_standard_messagepack() -> None:
    """Clients in other languages use other MessagePack libraries."""
    for packed in (pack_frame(FRAME), pack_result(RESULT)):
        assert msgspec.msgpack.decode(packed) == msgpack.unpackb(packed)
        assert msgspec.msgpack.encode(msgpack.unpackb(packed)) == packed


def test_key_order_does_not_matter() -> None:
    """Other senders may write the keys in another order."""
    large = msgspec.structs.replace(FRAME, shape=(200, 300, 3), data=bytes(180_000))
    fields = msgpack.unpackb(pack_frame(large, 0))
    first = {"v": 1, "data": fields["data"]} | fields
    for each in (first, fields | {"later": 1}, {"x": b"\xa4data\xc6"} | fields):
        assert unpack_frame(msgpack.packb(each), 0) == large


def test_invalid_load_of_a_result_is_rejected() -> None:
    """Vehicles compute with these numbers."""
    load = {"queue": 1, "free": 63, "wait_ms": float("nan"), "answer_ms": 30.0, "spacing_ms": 30.0}
    fields = msgpack.unpackb(pack_result(RESULT)) | {"load": load}
    with pytest.raises(MessageError, match=r"'load': wait_ms: expected a number from 0 to .*, not nan") as caught:
        unpack_result(msgpack.packb(fields))
    assert caught.value.frame_id == FRAME.id


def test_unknown_keys_and_stages_are_accepted() -> None:
    """A later version may add both."""
    fields = msgpack.unpackb(pack_frame(FRAME)) | {"colour_space": "bt709"}
    fields["stamps"].append(["polished", "edge/car/s1", 2])
    message = unpack_frame(msgpack.packb(fields))
    assert message.stamps[-1].stage == "polished"


def test_answered_segmentation_needs_a_mask_shape() -> None:
    """Results of other tasks have no shape."""
    fields = msgpack.unpackb(pack_result(RESULT)) | {"shape": None}
    with pytest.raises(MessageError, match="although the frame was answered with a mask"):
        unpack_result(msgpack.packb(fields))
    for task in TASKS.keys() - {"segmentation"}:
        assert unpack_result(msgpack.packb(fields | {"task": task})).task == task


def test_result_without_mask_stays_below_64_kib() -> None:
    """The stamps of a frame return with its result, which must fit the packet size of the broker even with a large mask."""
    stamps = tuple(Stamp("ä" * 64, "ä" * 200, MAX_NS) for _ in range(MAX_FRAME_STAMPS))
    unpack_frame(pack_frame(msgspec.structs.replace(FRAME, stamps=stamps)))
    result = msgspec.structs.replace(
        RESULT, data=b"", reason="x" * 500, geometry=FRAME.geometry, stamps=(*stamps, *stamps[:9])
    )
    assert unpack_result(pack_result(result)).stamps == result.stamps
    assert len(pack_result(result)) < 1 << 16


def test_oversized_status_is_rejected() -> None:
    """A vehicle keeps the status of every worker in memory."""
    with pytest.raises(MessageError, match="over the limit of 1048576"):
        unpack_status(pack_status(NodeStatus(NodeState.ONLINE, "s1")) + bytes(1 << 20))


def test_only_raw_tensors_may_lack_labels() -> None:
    """Results of all other tasks are class ids."""
    for task in TASKS.keys() - {"tensors"}:
        nameless = NodeStatus(NodeState.ONLINE, "s1", 1, (replace(CARD, task=task, labels=Labels((), ())),))
        with pytest.raises(MessageError, match="'labels'"):
            unpack_status(pack_status(nameless))


def _nested_lists(inner: bytes) -> bytes:
    """Returns about 4 MB: lists of lists of `inner`, none longer than the limit."""
    row = b"\xdc\x01\x00" + inner * 256
    table = b"\xdc\x01\x00" + row * 256
    return b"\x82\xa1v\x01\xa1x\x9f" + table * 15


@pytest.mark.parametrize(
    "bomb",
    [_nested_lists(b"\x80"), _nested_lists(b"\x90"), _nested_lists(b"\xcd\xff\xff"), _nested_lists(b"\xa2ab")],
    ids=["maps", "lists", "numbers", "texts"],
)
def test_nested_containers_do_not_exhaust_memory(bomb: bytes) -> None:
    """5 MB of empty maps used to take 265 MB."""
    with pytest.raises(MessageError, match="not a MessagePack map"):
        unpack_frame(bomb[:64])
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(MessageError):
        unpack_frame(bomb)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 100_000


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x93\x01\x02\x03",
        b"\xdf\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x91" * 5000,
        b"\x81\x01\x02",
        b"\xd6\xff\x00\x00\x00\x00",
        b"\x81\xa1v\x01trailing",
        bytes(MAX_MESSAGE_BYTES + 1),
    ],
    ids=["empty", "reserved", "list", "map", "array", "bin", "deep", "number as key", "timestamp", "trailing", "large"],
)
def test_payload_that_is_not_a_valid_map_is_rejected(payload: bytes) -> None:
    """Covers false lengths, deep nesting, extension types and other formats."""
    with pytest.raises(MessageError):
        unpack_frame(payload)


def test_texts_are_stripped_of_control_characters() -> None:
    """Texts appear in errors, tables and logs; an escape sequence could clear an operator's screen."""
    result = ResultMessage(FrameId("car", "left", "s1", 7), 1, Status.FAILED, "w", reason="a\x1b[2Jb\r\nc")
    assert unpack_result(pack_result(result)).reason == "a [2Jb  c"
    assert unpack_frame(
        pack_frame(msgspec.structs.replace(FRAME, options=RequestOptions("a\x1b")))
    ).options == RequestOptions("a ")
