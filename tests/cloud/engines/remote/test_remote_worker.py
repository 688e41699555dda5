"""The remote engines with another Skylane worker as the server."""

from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from msgspec.structs import replace

from cloud.models.loader import ModelLoader
from shared.imaging.geometry import Resize, plan
from shared.messages.frame import ResultMessage, Status, pack_frame, unpack_result
from shared.messages.protobuf_fields import pack, unpack
from shared.models.manifest import REMOTE_FORMATS
from shared.models.repository import Repository
from tests.support import model_servers, tiny_models
from tests.support.gateway import open_gateway
from tests.support.tiny_model import frame

FINAL_KINDS = {"mask": "class_ids", "boxes": "boxes", "scores": "probabilities"}


@pytest.mark.parametrize("task", tiny_models.TASKS)
def test_outputs_of_a_remote_worker_are_bit_identical(tmp_path: Path, task: str) -> None:
    """The remote worker's outputs are final, so nothing is computed twice."""
    tiny_models.write(tmp_path, task)
    repository = Repository(tmp_path)
    with ModelLoader(repository).open(task) as model, open_gateway(model) as doors:
        expected = model.infer(tiny_models.noise(3))
        kinds = {head: "tensor" if task == "tensors" else FINAL_KINDS[head] for head in expected}
        heads = {head: {"tensor": head, "kind": kind} for head, kind in kinds.items()}
        is_single = task in ("segmentation", "classification")
        for form in REMOTE_FORMATS:
            if (form, task) == ("open_inference", "tensors"):
                continue  # Its metadata cannot describe raw tensors of unknown shapes.
            model_servers.write_manifest(
                tmp_path,
                task,
                form,
                doors.grpc,
                form,
                {"model": task},
                input={"tensor": "input", "height": tiny_models.HEIGHT, "width": tiny_models.WIDTH},
                box_format={},
                **({"output": next(iter(heads.values()))} if is_single else {"outputs": heads}),
            )
            with ModelLoader(repository).open(form) as remote:
                outputs = remote.infer(tiny_models.noise(3))
            for head, values in expected.items():
                assert np.array_equal(outputs[head], values), (form, head)


def test_raw_tensors_are_requested_from_tensorflow_serving(tmp_path: Path) -> None:
    """A Skylane worker then replies with bytes; a list of numbers takes as long to parse as the image to send."""
    tiny_models.write(tmp_path, "segmentation")
    with model_servers.serve(tmp_path, "segmentation", "tensorflow_serving", tmp_path / "saved") as server:
        model_servers.write_manifest(tmp_path, "segmentation", "tensorflow_serving", server.address, "remote")
        with ModelLoader(Repository(tmp_path)).open("remote") as remote:
            remote.infer(tiny_models.noise(1))
        assert server.call_metadata[-1]["skylane-tensors"] == "content"


def test_frames_during_an_outage_fail_and_later_ones_are_answered(tmp_path: Path) -> None:
    """The worker reports the reason to the vehicle and keeps running."""
    tiny_models.write(tmp_path, "segmentation")
    (image,) = tiny_models.noise(1)
    with model_servers.serve(tmp_path, "segmentation", "open_inference", tmp_path / "saved") as server:
        model_servers.write_manifest(tmp_path, "segmentation", "open_inference", server.address, "remote")
        with (
            ModelLoader(Repository(tmp_path)).open("remote") as model,
            open_gateway(model) as doors,
            grpc.insecure_channel(doors.grpc) as channel,
        ):
            call: Any = channel.unary_unary("/skylane.v1.Worker/Answer")

            def ask(sequence: int) -> ResultMessage:
                message = replace(
                    frame(sequence, "remote"),
                    shape=image.shape,
                    geometry=plan(Resize.CROP, *image.shape[:2], *image.shape[:2]),
                    data=image.tobytes(),
                )
                return unpack_result(bytes(unpack(call(pack(pack_frame(message)), timeout=60))))

            before = ask(0)
            server.stop()
            failed = ask(1)
            server.start()
            model_servers.when_available(lambda: model.predict(image[np.newaxis]))
            after = ask(2)
    assert (before.status, before.engine) == (Status.ANSWERED, "triton fp32")
    assert (failed.status, failed.reason) == (Status.FAILED, "the model's server cannot be reached")
    assert (after.status, after.data) == (Status.ANSWERED, before.data)
