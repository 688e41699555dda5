from pathlib import Path
from typing import Any, cast

import pytest

from cloud.engines.engine import ENGINES, EngineEntry, Placement
from shared.messages.frame import Status
from tests.cloud.isolation import nasty
from tests.support.batching import WAIT_S, Line


@pytest.mark.parametrize("number", [nasty.RAISE, nasty.BUG, nasty.HANG, nasty.EXIT])
def test_a_frame_that_breaks_the_model_fails_alone(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried twice, then `failed`; those in its batch and those after it are answered, each with its own mask."""
    monkeypatch.setitem(ENGINES, "nasty", EngineEntry("tests.cloud.isolation.nasty:Nasty", "cloud", ("frozen_graph",)))
    engine = nasty.Watched(Path("model"), nasty.manifest(), Placement(), engine="nasty", limits=nasty.PATIENT)
    engine.infer(nasty.pictures(0))
    line = Line(cast("Any", engine), max_size=3, decoders=5)
    line.put(*(line.request(each) for each in (1, number, 2, 3, 4)))
    line.start()
    line.batcher.close()
    line.threads.join(3 * WAIT_S)
    engine.close()
    assert line.numbers() == [1, 2, 3, 4]
    ((failed, status, reason),) = line.answers()
    assert (failed, status) == (number, Status.FAILED)
    assert reason.startswith("poison: ")
