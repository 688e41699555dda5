"""The child: an engine in a process of its own, which does what comes over its channel until that is closed.

Run as `python -m cloud.isolation.engine_process CHANNEL LIFELINE`, two descriptors.
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

from cloud.engines.engine import DeviceError, Engine, EngineEntry, EngineError, Outputs, Placement, Precision
from cloud.isolation.channel import ChannelClosedError, EngineChannel
from cloud.isolation.shared_memory import SharedMemory
from cloud.models.manifest import Manifest
from cloud.models.tuning import Tuning
from shared import registry
from shared.errors import SkylaneError
from shared.hashing import tree_sha256

_ALIGNED = 64  # Bytes, as vector instructions like it.
_FIRST_TO_GO = "500"  # Of 1000: when memory runs out, the kernel ends this process and not the worker.


def main() -> None:
    """Open the engine that the first message names, then infer whatever comes."""
    channel, lifeline = EngineChannel(socket.socket(fileno=int(sys.argv[1]))), int(sys.argv[2])
    _die_with_parent(lifeline)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO, encoding="ascii")
    with suppress(ChannelClosedError):
        opening, _ = channel.receive()
        engine = _opened(opening, channel)
        if engine is not None:
            _serve(engine, channel)


def _die_with_parent(lifeline: int) -> None:
    """Have the kernel kill this process once nobody holds the other end of a pipe, whatever it is at then."""
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:  # It had gone before.
        os._exit(1)


def _opened(opening: Mapping[str, Any], channel: EngineChannel) -> Engine | None:
    """The engine, warmed up as it was asked for; None where that failed, which the parent then knows."""
    if opening["memory_bytes"]:
        resource.setrlimit(resource.RLIMIT_DATA, (opening["memory_bytes"],) * 2)
    name = opening["engine"]
    table = {name: EngineEntry(opening["entry"], opening["extra"], ())}
    told = opening["placement"]
    precision = None if told["precision"] is None else Precision(told["precision"])
    manifest = Manifest.model_validate_json(opening["manifest"])
    try:
        engine: Engine = registry.load("engine", table, name)(
            Path(opening["file"]), manifest, Placement(**{**told, "precision": precision})
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
    """The hash of what was opened: a process that comes later, in place of this one, must have opened the same."""
    try:
        return tree_sha256(file)
    except OSError:
        return None


def _serve(engine: Engine, channel: EngineChannel) -> None:
    """Infer until the channel is closed. A bug in the engine is reported and ends the process."""
    pictures: SharedMemory | None = None
    results: SharedMemory | None = None
    tuning = Tuning()
    while True:
        message, sent = channel.receive()
        pictures = _newer(sent, pictures)
        try:
            outputs = engine.infer(pictures.array(np.uint8, message["shape"]))
            tuning.inferred(message["shape"][0])
            heads, size = _layout(outputs)
            is_new = results is None or results.size < size
            results = _newer(SharedMemory.of_size(size) if is_new else None, results)
            for head, dtype, shape, offset in heads:
                results.array(dtype, shape, offset)[...] = outputs[head]
        except SkylaneError as error:
            channel.send({"kind": "failed", "problem": str(error)})
        except BaseException as error:
            traceback.print_exc()  # Before the report, after which the worker kills this process.
            channel.send({"kind": "broken", "problem": "".join(traceback.format_exception_only(error)).strip()[:500]})
            raise SystemExit(1) from error
        else:
            channel.send({"kind": "inferred", "heads": heads}, results if is_new else None)


def _newer(new: SharedMemory | None, old: SharedMemory | None) -> SharedMemory:
    """The new memory where there is one, which ends the old one's use."""
    if new is None:
        assert old is not None
        return old
    if old is not None:
        old.close()
    return new


def _layout(outputs: Outputs) -> tuple[list[tuple[str, str, tuple[int, ...], int]], int]:
    """Where each head lies in shared memory (name, dtype, shape, offset), and how large that must be."""
    heads, end = [], 0
    for head, values in outputs.items():
        if values.dtype.kind not in "biuf":
            raise SkylaneError(f"head {head} is of type {values.dtype}: only numbers can be shared with the worker")
        heads.append((head, values.dtype.str, values.shape, end))
        end += -(-values.nbytes // _ALIGNED) * _ALIGNED
    return heads, max(end, _ALIGNED)


if __name__ == "__main__":
    main()
