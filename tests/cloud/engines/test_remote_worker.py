"""A worker behind a worker: the remote engines at our own doors, which speak both protocols."""

from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from msgspec.structs import replace

from cloud.models.manifest import REMOTE_FORMATS
from cloud.models.repository import Repository
from shared.encoding.protobuf_wire import pack, unpack
from shared.imaging.geometry import Resize, plan
from shared.messages.frame import ResultMessage, Status, pack_frame, unpack_result
from tests.support import model_servers, tiny_models
from tests.support.gateway import open_gateway
from tests.support.tiny_model import frame

# What a model of raw tensors gives is not told by the Open Inference Protocol's metadata before it was given.
CASES = [
    (form, task)
    for form in REMOTE_FORMATS
    for task in tiny_models.TASKS
    if (form, task) != ("open_inference", "tensors")
]


@pytest.mark.parametrize(("form", "task"), CASES)
def test_another_worker_is_a_server_like_any(tmp_path: Path, form: str, task: str) -> None:
    """Its outputs are finished ones, as its engine gave them: nothing is computed twice, and no number changes."""
    tiny_models.write(tmp_path, task)
    repository = Repository(tmp_path)
    with repository.load(task) as model, open_gateway(model) as doors:
        wanted = model.infer(tiny_models.noise(3))
        heads = {head: {"tensor": head, "kind": _finished(head, task)} for head in wanted}
        told = (
            {"output": next(iter(heads.values()))} if task in ("segmentation", "classification") else {"outputs": heads}
        )
        model_servers.write(
            tmp_path,
            task,
            form,
            doors.grpc,
            "remote",
            {"model": task},
            input={"tensor": "input", "height": tiny_models.HEIGHT, "width": tiny_models.WIDTH},
            box_format={},
            **told,
        )
        with repository.load("remote") as remote:
            found = remote.infer(tiny_models.noise(3))
    for head, values in wanted.items():
        assert np.array_equal(found[head], values), head


def test_a_worker_is_asked_for_bytes(tmp_path: Path) -> None:
    """A list of a mask's numbers takes as long to read as the picture takes to send; a foreign server knows nothing of it."""
    tiny_models.write(tmp_path, "segmentation")
    with model_servers.serve(tmp_path, "segmentation", "tensorflow_serving", tmp_path / "saved") as server:
        model_servers.write(tmp_path, "segmentation", "tensorflow_serving", server.address, "remote")
        with Repository(tmp_path).load("remote") as remote:
            remote.infer(tiny_models.noise(1))
        assert server.asked[-1]["skylane-tensors"] == "content"


def test_frames_of_an_outage_are_told_so_and_the_next_are_answered(tmp_path: Path) -> None:
    """The worker lives, and nobody has to look after it."""
    tiny_models.write(tmp_path, "segmentation")
    (picture,) = tiny_models.noise(1)
    with model_servers.serve(tmp_path, "segmentation", "open_inference", tmp_path / "saved") as server:
        model_servers.write(tmp_path, "segmentation", "open_inference", server.address, "remote")
        with (
            Repository(tmp_path).load("remote") as model,
            open_gateway(model) as doors,
            grpc.insecure_channel(doors.grpc) as channel,
        ):
            call: Any = channel.unary_unary("/skylane.v1.Worker/Answer")

            def ask(sequence: int) -> ResultMessage:
                message = replace(
                    frame(sequence, "remote"),
                    shape=picture.shape,
                    geometry=plan(Resize.CROP, *picture.shape[:2], *picture.shape[:2]),
                    data=picture.tobytes(),
                )
                return unpack_result(bytes(unpack(call(pack(pack_frame(message)), timeout=60))))

            before = ask(0)
            server.stop()
            lost = ask(1)
            server.start()
            model_servers.await_line(model)
            after = ask(2)
    assert (before.status, before.engine) == (Status.ANSWERED, "triton fp32")
    assert (lost.status, lost.reason) == (Status.FAILED, "the model's server cannot be reached")
    assert (after.status, after.data) == (Status.ANSWERED, before.data)


def _finished(head: str, task: str) -> str:
    """What a head holds that an engine has given."""
    if task == "tensors":
        return "tensor"
    return {"mask": "class_ids", "boxes": "boxes", "scores": "probabilities"}[head]
