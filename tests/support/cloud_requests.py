"""Requests of the cloud's queue, as a frontend makes them."""

from typing import Any

from cloud.serving.request import Request
from shared import clock
from shared.stages import Stage


def make_request(**changes: Any) -> Request:
    """A request of vehicle `car` for the model `tiny`, whose reply is ignored; `changes` replace its fields."""
    fields: dict[str, Any] = {
        "payload": b"",
        "vehicle": "car",
        "camera": "left",
        "model": "tiny",
        "reply": lambda _: None,
        "times": {Stage.RECEIVED: clock.now_ns()},
        "max_reply_bytes": 1 << 20,
    }
    return Request(**fields | changes)
