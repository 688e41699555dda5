import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.messages import topics
from shared.messages.topics import FRAMES, MASKS, WORKER_STATUS, FrameId, TopicNameError, camera_name, checked
from shared.mqtt.bus import matches

NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)


@given(NAMES, NAMES, NAMES)
def test_what_is_built_is_read_back_and_found_by_its_filter(model: str, vehicle: str, camera: str) -> None:
    """The identity of a frame is its topic's: one wrong part and a mask goes to another vehicle."""
    topic = FRAMES.of(model=model, vehicle=vehicle, camera=camera)
    assert FRAMES.names_in(topic) == {"model": model, "vehicle": vehicle, "camera": camera}
    assert MASKS.names_in(topic) is None
    assert matches(FRAMES.filter(model=model), topic)
    assert matches(topics.shared("group", FRAMES.filter(model=model)), topic)
    assert not matches(FRAMES.filter(model=model + "x" if len(model) < 64 else "other"), topic)


@pytest.mark.parametrize("name", ["", "a/b", "+", "#", "a b", "ä", "a\n", "x" * 65, "$SYS", "a\x00"])
def test_a_name_that_a_topic_or_an_acl_reads_as_its_own_is_refused(name: str) -> None:
    """A vehicle called `+` would read everyone's masks."""
    with pytest.raises(TopicNameError, match="is not allowed: use 1 to 64 of"):
        MASKS.of(vehicle=name, camera="left")


@given(st.text(max_size=200))
def test_names_read_from_any_topic_are_allowed_ones(topic: str) -> None:
    """Whatever a broker delivers."""
    for kind in (FRAMES, MASKS, WORKER_STATUS):
        for name in (kind.names_in(f"{topics.PREFIX}/{topic}") or {}).values():
            assert checked("name", name)


@given(NAMES, NAMES, NAMES, st.integers(0, 10**18 - 1))
def test_an_id_survives_the_wire(vehicle: str, camera: str, session: str, sequence: int) -> None:
    """The ledger finds a frame by nothing else."""
    frame_id = FrameId(vehicle, camera, session, sequence)
    assert FrameId.parse(str(frame_id)) == frame_id
    assert str(frame_id).isascii()


@pytest.mark.parametrize(
    "text", ["", "a/b/c", "a/b/c/-1", "a/b/c/1/2", "a/b/c/١", "a/b/c/" + "9" * 19, "a//c/1", "+/b/c/1"]
)
def test_what_is_no_id_is_refused(text: str) -> None:
    """An id comes from the wire."""
    with pytest.raises(TopicNameError):
        FrameId.parse(text)


@given(st.text())
def test_every_camera_gets_a_name_that_a_topic_takes(ros_topic: str) -> None:
    """A bag's topics are whatever its maker liked."""
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", camera_name(ros_topic))


def test_a_ros_topic_keeps_its_shape() -> None:
    """A person must find the camera again among the topics."""
    assert camera_name("/sensors/camera/left/image_raw") == "sensors_camera_left_image_raw"
