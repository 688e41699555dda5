"""The child process: opens an engine and infers the batches that arrive over a channel until that is closed.

It is run as `python -m cloud.isolation.engine_process CHANNEL LIFELINE` with two file descriptors.
"""

import fcntl
import os
import resource
import select
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from cloud.isolation.channel import ChannelClosedError, EngineChannel, SharedMemory, replaced
from shared import registry
from shared.errors import SkylaneError
from shared.files import tree_sha256
from shared.inference.engine import DeviceError, Engine, EngineError, Outputs
from shared.inference.table import EngineEntry
from shared.models.manifest import Manifest, Placement, Precision
from shared.runtime import memory

_ALIGNMENT = 64  # Bytes, for vector instructions.
_OOM_SCORE = "500"  # Of 1000: when memory runs out, the kernel kills this process instead of the worker.


def main() -> None:
    """Opens the engine in the first message, then serves."""
    channel, lifeline = EngineChannel(socket.socket(fileno=int(sys.argv[1]))), int(sys.argv[2])
    _die_with_parent(lifeline)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE, encoding="ascii")
    with suppress(ChannelClosedError):
        opening, _ = channel.receive()
        engine = _open(opening, channel)
        if engine is not None:
            _serve(engine, channel)


def _die_with_parent(lifeline: int) -> None:
    """Makes the kernel kill this process when the other end of a pipe is closed, even if it hangs."""
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:  # It is closed already.
        os._exit(1)


def _open(opening: Mapping[str, Any], channel: EngineChannel) -> Engine | None:
    """Opens and warms up the engine; sends an error to the worker and returns None if that fails."""
    if opening["memory_bytes"]:
        resource.setrlimit(resource.RLIMIT_DATA, (opening["memory_bytes"],) * 2)
    name = opening["engine"]
    table = {name: EngineEntry(opening["entry"], opening["extra"], ())}
    placement = opening["placement"]
    precision = None if placement["precision"] is None else Precision(placement["precision"])
    manifest = Manifest.model_validate_json(opening["manifest"])
    try:
        engine: Engine = registry.load("engine", table, name)(
            Path(opening["file"]), manifest, Placement(**{**placement, "precision": precision})
        )
        height, width = manifest.input.height, manifest.input.width
        for size in {engine.batch_size or 1, engine.batch_size or manifest.batching.max_size}:
            for _ in range(opening["warm_up"]):
                engine.infer(np.zeros((size, height, width, 3), np.uint8))
    except EngineError as error:
        channel.send({"kind": "engine", "problem": error.problem})
    except DeviceError as error:
        channel.send({"kind": "device", "device": error.device, "problem": str(error)})
    except SkylaneError as error:
        channel.send({"kind": "other", "problem": str(error)})
    else:
        facts = {"device": engine.device, "precision": engine.precision.value, "batch_size": engine.batch_size}
        channel.send({"kind": "open", **facts, "sha256": _sha256(Path(opening["file"]))})
        return engine
    return None


def _sha256(file: Path) -> str | None:
    """The hash of the opened file, by which the worker checks that a replacement process has opened the same file."""
    try:
        return tree_sha256(file)
    except OSError:
        return None


def _serve(engine: Engine, channel: EngineChannel) -> None:
    """Infers until the channel is closed; an unexpected exception is reported and ends the process."""
    images: SharedMemory | None = None
    results: SharedMemory | None = None
    tuned_sizes: set[int] = set()
    while True:
        message, sent = channel.receive()
        images = replaced(sent, images)
        try:
            outputs = engine.infer(images.array(np.uint8, message["shape"]))
            if message["shape"][0] not in tuned_sizes:
                tuned_sizes.add(message["shape"][0])
                memory.trim()
            heads, size = _layout(outputs)
            is_new = results is None or results.size < size
            results = replaced(SharedMemory.of_size(size) if is_new else None, results)
            for name, dtype, shape, offset in heads:
                results.array(dtype, shape, offset)[...] = outputs[name]
        except SkylaneError as error:
            channel.send({"kind": "failed", "problem": str(error)})
        except BaseException as error:
            traceback.print_exc()  # The worker kills this process after the report.
            channel.send({"kind": "broken", "problem": "".join(traceback.format_exception_only(error)).strip()[:500]})
            raise SystemExit(1) from error
        else:
            channel.send({"kind": "inferred", "heads": heads}, results if is_new else None)


def _layout(outputs: Outputs) -> tuple[list[tuple[str, str, tuple[int, ...], int]], int]:
    """Returns name, dtype, shape and offset of each output in shared memory, and the total size in bytes."""
    heads, end = [], 0
    for name, values in outputs.items():
        if values.dtype.kind not in "biuf":
            raise SkylaneError(f"output {name} has type {values.dtype}: only numbers can be shared with the worker")
        heads.append((name, values.dtype.str, values.shape, end))
        end += -(-values.nbytes // _ALIGNMENT) * _ALIGNMENT
    return heads, max(end, _ALIGNMENT)


if __name__ == "__main__":
    main()
