"""TensorFlow as the engines want it: quiet, on the device that was asked for."""

import logging
import os
import re
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from cloud.engines.engine import DeviceError, Placement, Precision
from shared.runtime.machine import usable_cores

_NOISE = re.compile(rb"WARNING: All log messages before absl|[IW]\d{4} ")


def _imported_quietly(module: str) -> Any:
    """Import TensorFlow without what its libraries write to the process's stderr before they read any log level."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held:
        stderr = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            return import_module(module)
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            held.seek(0)
            for line in held:  # What others wrote meanwhile is theirs to be read.
                if not _NOISE.match(line):
                    os.write(2, line)


# Read when the library is loaded, hence before the import: nothing but crashes is told, and oneDNN (1.4× on CPU) is on.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

tf: Any = _imported_quietly("tensorflow")  # Any: TensorFlow ships no types.
convert_variables_to_constants: Any = import_module(
    "tensorflow.python.framework.convert_to_constants"
).convert_variables_to_constants_v2
logging.getLogger("tensorflow").setLevel(logging.ERROR)


def choose_device(device: str) -> str:
    """The device to run on, "cpu" or "gpu:N", for one asked for as "auto", "cpu", "gpu" or "gpu:N".

    Raises:
        DeviceError: it is no device's name, or this machine has no such GPU.
    """
    if device == "cpu":
        return "cpu"
    if device != "auto" and not re.fullmatch(r"gpu(:[0-9]{1,3})?", device):
        raise DeviceError(device, "is no device: use auto, cpu or gpu:N")
    gpus = _visible_gpus()
    if device == "auto":
        return "gpu:0" if gpus else "cpu"
    index = int(device.partition(":")[2] or 0)
    if not gpus:
        raise DeviceError(device, "TensorFlow sees no GPU on this machine: use cpu, or install tensorflow[and-cuda]")
    if index >= len(gpus):
        raise DeviceError(device, f"this machine has {len(gpus)} GPU(s), numbered from 0: use gpu:{len(gpus) - 1}")
    return f"gpu:{index}"


def check_precision(precision: Precision, device: str) -> None:
    """Check that TensorFlow can compute in a precision on "cpu" or "gpu:N".

    Raises:
        DeviceError: it cannot.
    """
    known = (Precision.FP32, Precision.BF16) if device == "cpu" else (Precision.FP32, Precision.FP16)
    if precision not in known:
        names = " or ".join(known)
        raise DeviceError(device, f"TensorFlow computes in {names} there, not in {precision}: use one of them")
    if precision is Precision.BF16 and not _has_bf16():
        raise DeviceError(device, "this processor has no instructions for bf16: use fp32")


def instances(device: str, placement: Placement) -> int:
    """How many batches a session infers at a time on "cpu" or "gpu:N".

    Where nobody says, two on several cores: one batch fills the gaps that the other leaves between its operations.
    """
    if placement.instances is not None:
        return placement.instances
    return 2 if device == "cpu" and (placement.intra_threads or usable_cores()) > 1 else 1


def session_config(device: str, placement: Placement, precision: Precision) -> Any:
    """The settings of a session (a ConfigProto) on "cpu" or "gpu:N"."""
    config = tf.compat.v1.ConfigProto(
        # Foreign graphs hold operations that have no GPU form.
        allow_soft_placement=True,
        intra_op_parallelism_threads=placement.intra_threads,
        inter_op_parallelism_threads=placement.inter_threads,
    )
    # Threads that spin between operations take the processor from another batch: beside the peers a worker of two batches at a
    # time then answers 5 % fewer frames. Of a single batch at a time no difference could be told.
    config.experimental.disable_thread_spinning = instances(device, placement) > 1
    rewriting, enabled = config.graph_options.rewrite_options, 1  # RewriterConfig.ON
    if precision is Precision.BF16:
        rewriting.auto_mixed_precision_onednn_bfloat16 = enabled
    elif precision is Precision.FP16:
        rewriting.auto_mixed_precision = enabled
    if device == "cpu":
        config.device_count["GPU"] = 0
    else:
        config.gpu_options.allow_growth = True
    return config


def _has_bf16() -> bool:
    try:
        told = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return "avx512_bf16" in told or "amx_bf16" in told


def _visible_gpus() -> list[Any]:
    gpus: list[Any] = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        # Without growth the first session takes all of the GPU's memory, and a second model none.
        if not tf.config.experimental.get_memory_growth(gpu):
            tf.config.experimental.set_memory_growth(gpu, enable=True)
    return gpus
