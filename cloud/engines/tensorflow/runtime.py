"""Imports TensorFlow without its log output, and configures devices and sessions."""

import logging
import os
import re
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from shared.inference import engine
from shared.inference.engine import DeviceError
from shared.models.manifest import Placement, Precision
from shared.runtime.machine import usable_cores

_NOISE = re.compile(rb"WARNING: All log messages before absl|[IW]\d{4} ")


def _imported_quietly(module: str) -> Any:
    """Imports TensorFlow without the lines that its libraries write to stderr before they read a log level."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as captured:
        stderr = os.dup(2)
        os.dup2(captured.fileno(), 2)
        try:
            return import_module(module)
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            captured.seek(0)
            for line in captured:  # Other threads may have written to stderr during the import.
                if not _NOISE.match(line):
                    os.write(2, line)


# The library reads these when it is loaded: log crashes only, enable oneDNN (1.4× faster on a CPU), and leave out `tf.keras`,
# which takes half of the time and which nothing here uses: files of Keras are read by the library `keras`.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

tf: Any = _imported_quietly("tensorflow")  # Any: TensorFlow has no type hints.
convert_variables_to_constants: Any = import_module(
    "tensorflow.python.framework.convert_to_constants"
).convert_variables_to_constants_v2
logging.getLogger("tensorflow").setLevel(logging.ERROR)


def choose_device(device: str) -> str:
    """Returns the device to run on, "cpu" or "gpu:N", for "auto", "cpu", "gpu" or "gpu:N".

    Raises:
        DeviceError: the name is invalid, or this machine has no such GPU.
    """
    gpus = 0 if device == "cpu" else len(_visible_gpus())
    return engine.choose_device(device, gpus, "TensorFlow", "install tensorflow[and-cuda]")


def check_precision(precision: Precision, device: str) -> None:
    """Checks that TensorFlow can compute in a precision on "cpu" or "gpu:N".

    Raises:
        DeviceError: it cannot.
    """
    supported = (Precision.FP32, Precision.BF16) if device == "cpu" else (Precision.FP32, Precision.FP16)
    if precision not in supported:
        names = " or ".join(supported)
        raise DeviceError(device, f"TensorFlow computes in {names} there, not in {precision}: use one of them")
    if precision is Precision.BF16 and not _has_bf16():
        raise DeviceError(device, "this processor has no instructions for bf16: use fp32")


def instances(device: str, placement: Placement) -> int:
    """Returns the number of batches that a session infers at the same time on "cpu" or "gpu:N".

    The default on several cores is two: one batch uses the cores that the other leaves idle between operations.
    """
    if placement.instances is not None:
        return placement.instances
    return 2 if device == "cpu" and (placement.intra_threads or usable_cores()) > 1 else 1


def session_config(device: str, placement: Placement, precision: Precision) -> Any:
    """Returns the ConfigProto of a session on "cpu" or "gpu:N"."""
    config = tf.compat.v1.ConfigProto(
        # Some operations of third-party graphs have no GPU kernel.
        allow_soft_placement=True,
        intra_op_parallelism_threads=placement.intra_threads,
        inter_op_parallelism_threads=placement.inter_threads,
    )
    # Spinning threads take CPU time from a concurrent batch: with two batches, a worker processed 5 % fewer frames.
    # With one batch at a time, there was no measurable difference.
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
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def _visible_gpus() -> list[Any]:
    gpus: list[Any] = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        # Without memory growth, the first session allocates all memory of the GPU.
        if not tf.config.experimental.get_memory_growth(gpu):
            tf.config.experimental.set_memory_growth(gpu, enable=True)
    return gpus
