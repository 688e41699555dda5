"""Frames that a broker refuses or that no broker can get: each row names its own reason, and what helps."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from edge.config import Arrivals
from edge.run import NOTHING_ANSWERED
from ops.broker.broker import Broker
from tests.pipeline.rig import Vehicle, connect, count_outcomes, null_workers, pictures, play
from tests.support.mqtt_bus import mosquitto_with

pytestmark = pytest.mark.mosquitto


def test_a_frame_above_an_unannounced_limit_names_its_size_and_what_helps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mosquitto reports "Implementation specific error" for a message above its message_size_limit, and no limit."""
    with (
        mosquitto_with(tmp_path, "allow_anonymous true", "message_size_limit 10000") as broker,
        null_workers(broker.url, "tiny", 1, think_ms=1.0),
    ):
        code, _ = play(pictures(tmp_path, 2), broker.url, tmp_path / "car", codec="raw", closed_loop=True)
    printed = capsys.readouterr().err
    assert code == NOTHING_ANSWERED
    assert "none of the 2 frames got a result in time: broker_refused: Implementation specific error: " in printed
    assert ": 19," in printed
    for named in ("message_size_limit", "max_packet_size", "--codec jpeg", "--resize-at edge", "raise the limit"):
        assert named in printed


@pytest.mark.parametrize("reuses", [False, True])
def test_frames_without_a_broker_have_a_reason_of_their_own(
    tmp_path: Path, mosquitto_broker: Broker, *, reuses: bool
) -> None:
    """The workers may be well; looking for a missing one, or for a longer queue, would be the wrong place."""
    model = f"instant-{uuid4().hex[:6]}"
    settings: dict[str, Any] = {"gate": "pixels", "gate_threshold": 0.0} if reuses else {}
    with null_workers(mosquitto_broker.url, model, 1, think_ms=5.0):
        vehicle = Vehicle(
            connect(mosquitto_broker.url),
            pictures(tmp_path, 20),
            tmp_path / model,
            closed_loop=False,
            arrivals=Arrivals.UNIFORM,
            arrival_rate_hz=50.0,
            loop=True,
            model=model,
            window=2,
            answer_timeout_s=1.0,
            **settings,
        )
        answered: list[int] = []

        def tick() -> None:
            if not answered and vehicle.answered() >= 5:
                mosquitto_broker.stop()
                answered.append(vehicle.answered())
            if answered and count_outcomes(vehicle.rows())["dropped", "no_broker"] >= 20:
                vehicle.stop()

        outcomes = count_outcomes(vehicle.play(tick))
    assert outcomes["dropped", "no_broker"] >= 20
    assert (
        outcomes["dropped", "no_worker"] <= 2
    )  # A broker that stops closes its clients in turn, the worker's perhaps first.
