import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.messages import topics
from shared.messages.topics import (
    FRAMES,
    MASKS,
    WORKER_STATUS,
    CameraNames,
    FrameId,
    TopicNameError,
    camera_name,
    result_topic,
    validate_name,
)
from shared.mqtt.packets import matches

NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)


@given(NAMES, NAMES, NAMES)
def test_names_in_topics_round_trip_and_match_filters(model: str, vehicle: str, camera: str) -> None:
    """The topic identifies a frame: a wrong name would send a mask to another vehicle."""
    topic = FRAMES.of(model=model, vehicle=vehicle, camera=camera)
    assert FRAMES.names_in(topic) == {"model": model, "vehicle": vehicle, "camera": camera}
    assert MASKS.names_in(topic) is None
    assert matches(FRAMES.filter(model=model), topic)
    assert matches(topics.shared("group", FRAMES.filter(model=model)), topic)
    assert not matches(FRAMES.filter(model=model + "x" if len(model) < 64 else "other"), topic)


@pytest.mark.parametrize("name", ["", "a/b", "+", "#", "a b", "ä", "a\n", "x" * 65, "$SYS", "a\x00"])
def test_names_with_special_characters_are_rejected(name: str) -> None:
    """A vehicle named `+` could read the masks of all vehicles."""
    with pytest.raises(TopicNameError, match="is not allowed: use 1 to 64 of"):
        MASKS.of(vehicle=name, camera="left")


@given(st.text(max_size=200))
def test_names_from_any_topic_are_valid(topic: str) -> None:
    """A broker may deliver any topic."""
    for kind in (FRAMES, MASKS, WORKER_STATUS):
        for name in (kind.names_in(f"{topics.PREFIX}/{topic}") or {}).values():
            assert validate_name("name", name)


@given(NAMES, NAMES, NAMES, st.integers(0, 10**18 - 1))
def test_frame_id_round_trips(vehicle: str, camera: str, session: str, sequence: int) -> None:
    """The encoded id is ASCII."""
    frame_id = FrameId(vehicle, camera, session, sequence)
    assert FrameId.parse(str(frame_id)) == frame_id
    assert str(frame_id).isascii()


@pytest.mark.parametrize(
    "text", ["", "a/b/c", "a/b/c/-1", "a/b/c/1/2", "a/b/c/١", "a/b/c/" + "9" * 19, "a//c/1", "+/b/c/1"]
)
def test_invalid_frame_id_is_rejected(text: str) -> None:
    """Ids are received from the network."""
    with pytest.raises(TopicNameError):
        FrameId.parse(text)


@given(st.text())
def test_any_ros_topic_becomes_a_valid_name(ros_topic: str) -> None:
    """A bag may contain any topic name."""
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", camera_name(ros_topic))


def test_ros_topic_stays_recognisable() -> None:
    """An operator must recognise the camera in MQTT topics."""
    assert camera_name("/sensors/camera/left/image_raw") == "sensors_camera_left_image_raw"


def test_cameras_with_one_name_are_told_apart() -> None:
    """The files of two cameras would mix in one folder, also where case does not count."""
    long = "/" + "a" * 70
    names = CameraNames(["/cam/image", "/cam_image", "/cam_image_2", "/Cam/image", "/", "", long, long + "b"])
    assert list(names.values())[:4] == ["cam_image", "cam_image_2", "cam_image_2_2", "Cam_image_3"]
    assert len({name.casefold() for name in names.values()}) == 8
    assert all(validate_name("camera", name) for name in names.values())
    assert names["/cam_image"] == "cam_image_2"
    topics = CameraNames(["/cam/image_raw", "/cam"], name_of=result_topic)
    assert topics == {"/cam/image_raw": "/cam", "/cam": "/cam_2"}
