"""The engine of OpenVINO: its own files, ONNX, TensorFlow Lite, frozen graphs and SavedModels, on Intel's devices."""

from pathlib import Path
from typing import Any

import numpy as np

from cloud.engines.devices import choose
from cloud.engines.engine import DeviceError, EngineError, Images, InferenceError, Outputs, Placement, Precision
from cloud.engines.openvino.graph import model_batch_size, read_end_to_end, rewritten, told
from cloud.engines.openvino.library import core
from cloud.models.manifest import Manifest

# What OpenVINO calls the numbers that a precision computes in.
_HINTS = {Precision.FP32: "f32", Precision.BF16: "bf16", Precision.FP16: "f16"}


class OpenVinoEngine:
    """Runs a model, rewritten so that OpenVINO runs it fast; the manifest's tensors are its inputs' and outputs' names.

    A device compiles a model for one size of batch. Where the file leaves it open, every power of two up to the
    manifest's `batching.max_size` is compiled, and a batch is run in such parts.
    """

    def __init__(self, path: Path, manifest: Manifest, placement: Placement) -> None:
        """Read, rewrite and compile.

        Raises:
            EngineError: the file is no model that OpenVINO runs, or not what the manifest says.
            DeviceError: the device is not there, or does not compute in the precision.
        """
        self.name = "openvino"
        openvino = core()
        # Chosen by itself is the CPU alone: an Intel GPU in a processor is not surely faster.
        gpus = sum(each.startswith("GPU") for each in openvino.available_devices) if placement.device != "auto" else 0
        self.device = choose(placement.device, gpus, "OpenVINO", "install Intel's GPU driver")
        self.precision = _precision(path, manifest, placement)
        where = self.device.upper().replace(":", ".")
        config: dict[str, Any] = {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": "1",
            "INFERENCE_PRECISION_HINT": _hint(
                self.precision, openvino.get_property(where, "OPTIMIZATION_CAPABILITIES")
            ),
        }
        if self.device == "cpu":
            # Pinned threads of two processes would share one core while another idles.
            config |= {"ENABLE_CPU_PINNING": False, "INFERENCE_NUM_THREADS": placement.intra_threads}
        whole = read_end_to_end(openvino, path, manifest)
        self.batch_size = model_batch_size(whole)
        sizes = _powers(manifest.batching.max_size) if self.batch_size is None else [self.batch_size]
        try:
            compiled = {size: openvino.compile_model(rewritten(whole, size), where, config) for size in sizes}
        except RuntimeError as error:
            raise EngineError(path, f"OpenVINO cannot compile this model: {told(error)}") from error
        self._requests = {size: each.create_infer_request() for size, each in compiled.items()}
        self._heads = tuple(manifest.heads)

    def infer(self, batch: Images) -> Outputs:
        """As `cloud.engines.engine.Engine.infer`."""
        parts, start = [], 0
        while start < len(batch):
            size = max(size for size in self._requests if size <= len(batch) - start)
            parts.append(self._part(batch[start : start + size]))
            start += size
        if len(parts) == 1:
            return parts[0]
        return {head: np.concatenate([part[head] for part in parts]) for head in self._heads}

    def close(self) -> None:
        """Release the compiled models."""
        self._requests = {}

    def _part(self, batch: Images) -> dict[str, Any]:
        """Infer a batch of a size that was compiled for."""
        request = self._requests[len(batch)]
        try:
            request.infer([batch], share_inputs=True)
        except RuntimeError as error:
            raise InferenceError(f"the model failed: {told(error)}") from error
        # Copied, as the next batch is written to the same place.
        found = {head: np.array(request.get_output_tensor(place).data) for place, head in enumerate(self._heads)}
        for head, values in found.items():
            if values.dtype.kind == "f" and np.isnan(values).any():
                raise InferenceError(f"the model returned NaN in {head!r}")
        return found


def _precision(path: Path, manifest: Manifest, placement: Placement) -> Precision:
    """What to compute in: what was asked for, else what the file's numbers are.

    Half numbers in a file are there to make it small: processors are slow at them, so they are widened.

    Raises:
        EngineError: int8 and the file's numbers exclude each other.
    """
    own = Precision.FP32 if manifest.precision is Precision.FP16 else manifest.precision
    wanted = placement.precision or own
    if Precision.INT8 in (wanted, manifest.precision) and wanted is not manifest.precision:
        remedy = "quantise it with `skylane model quantize`" if wanted is Precision.INT8 else "leave the precision out"
        raise EngineError(path, f"holds {manifest.precision} numbers and cannot be run in {wanted}: {remedy}")
    return wanted


def _hint(precision: Precision, capabilities: list[str]) -> str:
    """The numbers that a device is told to compute in; of int8, what is not quantised is bfloat16 where it can be.

    Raises:
        DeviceError: it cannot compute in them.
    """
    if precision is Precision.INT8:
        return "bf16" if "BF16" in capabilities else "f32"
    if precision is not Precision.FP32 and precision.upper() not in capabilities:
        known = [str(each) for each in Precision if each.upper() in capabilities]
        raise DeviceError("cpu", f"this processor does not compute in {precision}: use {' or '.join(known) or 'fp32'}")
    return _HINTS[precision]


def _powers(most: int) -> list[int]:
    return [1 << place for place in range(most.bit_length())]
