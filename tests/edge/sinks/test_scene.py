"""What a viewer draws of a frame."""

from dataclasses import replace

import numpy as np
import pytest

from edge.sinks.scene import Reduction, draw, is_presented
from edge.sinks.sink import Origin
from shared.runlog.presented_log import OutputOrigin
from tests.edge.samples import CARD, make_result


@pytest.mark.parametrize(
    ("origin", "age_ns", "expected"),
    [
        (Origin.WORKER, None, False),
        (Origin.LOCAL, None, False),
        (Origin.WORKER, 0, True),
        (OutputOrigin.LOCAL, None, True),
        (OutputOrigin.WARPED, 5, True),
        (OutputOrigin.NONE, None, True),
    ],
)
def test_outputs_of_a_presenter_are_told_from_results(
    *, origin: Origin | OutputOrigin, age_ns: int | None, expected: bool
) -> None:
    """Both are drawn at places of their own; an output without an age is one too."""
    frame = replace(make_result(np.zeros((64, 96, 3), np.uint8)), origin=origin, age_ns=age_ns)
    assert is_presented(frame) is expected
    drawing = draw(replace(frame, result=None), CARD, Reduction())
    assert drawing.is_empty is expected
    assert drawing.image.any() == expected  # It says "no output".
