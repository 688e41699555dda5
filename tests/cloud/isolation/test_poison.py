from pathlib import Path
from typing import Any, cast

import pytest

from shared.inference.table import ENGINES, EngineEntry
from shared.messages.frame import Status
from shared.models.manifest import Placement
from tests.cloud.isolation import nasty
from tests.support.batching import WAIT_S, BatcherRig


@pytest.mark.parametrize("number", [nasty.RAISE, nasty.BUG, nasty.HANG, nasty.EXIT])
def test_a_frame_that_breaks_the_model_fails_alone(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried twice, then refused as `failed`; the other frames of its batch get their own masks."""
    monkeypatch.setitem(ENGINES, "nasty", EngineEntry("tests.cloud.isolation.nasty:Nasty", "cloud", ("frozen_graph",)))
    engine = nasty.Watched(Path("model"), nasty.manifest(), Placement(), engine="nasty", limits=nasty.PATIENT)
    engine.infer(nasty.pictures(0))
    rig = BatcherRig(cast("Any", engine), max_size=3, decoders=5)
    rig.put(*(rig.request(each) for each in (1, number, 2, 3, 4)))
    rig.start()
    rig.batcher.close()
    rig.threads.join(3 * WAIT_S)
    engine.close()
    assert rig.numbers() == [1, 2, 3, 4]
    ((failed, status, reason),) = rig.answers()
    assert (failed, status) == (number, Status.FAILED)
    assert reason.startswith("poison: ")
