"""A worker behind a worker: the remote engines at our own doors, which speak both protocols."""

from pathlib import Path

import numpy as np
import pytest

from cloud.manifest import REMOTE_FORMATS
from cloud.repository import Repository
from tests.cloud.engines import remote_servers, tiny
from tests.cloud.gateway.rig import open_doors

# What a model of raw tensors gives is not told by the Open Inference Protocol's metadata before it was given.
CASES = [
    (form, task) for form in REMOTE_FORMATS for task in tiny.TASKS if (form, task) != ("open_inference", "tensors")
]


@pytest.mark.parametrize(("form", "task"), CASES)
def test_another_worker_is_a_server_like_any(tmp_path: Path, form: str, task: str) -> None:
    """Its outputs are finished ones, as its engine gave them: nothing is computed twice, and no number changes."""
    tiny.write(tmp_path, task)
    repository = Repository(tmp_path)
    with repository.load(task) as model, open_doors(model) as doors:
        wanted = model.infer(tiny.noise(3))
        heads = {head: {"tensor": head, "kind": _finished(head, task)} for head in wanted}
        told = (
            {"output": next(iter(heads.values()))} if task in ("segmentation", "classification") else {"outputs": heads}
        )
        remote_servers.write(
            tmp_path,
            task,
            form,
            doors.grpc,
            "remote",
            {"model": task},
            input={"tensor": "input", "height": tiny.HEIGHT, "width": tiny.WIDTH},
            box_format={},
            **told,
        )
        with repository.load("remote") as remote:
            found = remote.infer(tiny.noise(3))
    for head, values in wanted.items():
        assert np.array_equal(found[head], values), head


def _finished(head: str, task: str) -> str:
    """What a head holds that an engine has given."""
    if task == "tensors":
        return "tensor"
    return {"mask": "class_ids", "boxes": "boxes", "scores": "probabilities"}[head]
