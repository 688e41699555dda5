from pathlib import Path

import numpy as np
import pytest

from bench.baselines.mqtt.images import read
from bench.baselines.serving.clients import CLIENTS, GrpcClient, LapTimer, in_lists, served_ms
from bench.baselines.serving.vehicle import ServingVehicle
from bench.load.playback import BenchError
from cloud.models.repository import Repository
from tests.pipeline.rig import HEIGHT, WIDTH, noise
from tests.support.gateway import open_gateway


@pytest.mark.parametrize("way", ["rest", "grpc"])
def test_lists_come_back_as_the_models_own_mask(way: str, models: Path, bag: Path) -> None:
    """The baseline must be answered as Skylane is: what it does slowly, it does rightly."""
    picture = noise(5, (HEIGHT, WIDTH, 3))
    with Repository(models).load("tiny") as model, open_gateway(model) as doors:
        truth = model.predict(picture[None])[0]
        client = CLIENTS[way](doors.http if way == "rest" else doors.grpc, "tiny", "mask")
        timer = LapTimer()
        answer = client.predict(picture, timer)
        assert np.array_equal(answer.mask, truth)
        assert answer.served_ms["inferred"] > 0
        assert {"to_lists", "away", "from_lists"} <= timer.took_ms.keys()
        times = ServingVehicle(client, model.card, read(bag, 1)).send({"frame": 0})
        assert times["total"] > times["inferred"] + times["in_lists"]
        assert {"demosaiced", "preprocessed", "link_and_door"} <= times.keys()
        lost = CLIENTS[way](doors.http if way == "rest" else doors.grpc, "absent", "mask")
        with pytest.raises(BenchError, match="absent"):
            lost.predict(picture, LapTimer())
        for each in (client, lost):
            if isinstance(each, GrpcClient):
                each.close()


def test_stages_are_read_from_the_header() -> None:
    """The inference of a frame is taken off its total: read wrongly, the ratio is another's."""
    assert served_ms("decoded;dur=1.500, inferred;dur=210.25") == {"decoded": 1.5, "inferred": 210.25}
    assert served_ms('cache;desc="a hit", inferred;desc="model";dur=3') == {"inferred": 3.0}
    assert served_ms("") == {}


def test_time_in_lists_is_that_of_every_conversion() -> None:
    """Both directions, whatever the protocol calls its own."""
    took_ms = {"demosaiced": 1.0, "to_lists": 2.0, "to_json": 4.0, "from_json": 8.0, "from_lists": 16.0, "away": 32.0}
    assert in_lists(took_ms) == 30.0
