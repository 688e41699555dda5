"""The OpenVINO engine: OpenVINO, ONNX, TensorFlow Lite, frozen graph and SavedModel files on Intel devices."""

from pathlib import Path
from typing import Any

import numpy as np

from cloud.engines.openvino.graph import model_batch_size, optimised, read_end_to_end
from cloud.engines.openvino.runtime import core
from shared.errors import error_reason
from shared.inference.engine import DeviceError, EngineError, Images, InferenceError, Outputs, choose_device
from shared.inference.pre_postprocess import checked_heads, class_id_heads
from shared.models.manifest import Manifest, Placement, Precision

# OpenVINO's names of the precisions.
_HINTS = {Precision.FP32: "f32", Precision.BF16: "bf16", Precision.FP16: "f16"}


class OpenVinoEngine:
    """Runs a model after optimising its graph; the manifest's tensors are the names of its inputs and outputs.

    OpenVINO compiles a model for one batch size. If the file accepts any, the engine compiles every power of two up to the
    manifest's `batching.max_size` and splits each batch into these sizes.
    """

    def __init__(self, path: Path, manifest: Manifest, placement: Placement) -> None:
        """Reads, optimises and compiles the model.

        Raises:
            EngineError: OpenVINO cannot run the file, or it does not match the manifest.
            DeviceError: the device is missing, or cannot compute in the precision.
        """
        self.name = "openvino"
        openvino = core()
        # "auto" means the CPU: an Intel integrated GPU is not always faster.
        gpus = sum(each.startswith("GPU") for each in openvino.available_devices) if placement.device != "auto" else 0
        self.device = choose_device(placement.device, gpus, "OpenVINO", "install Intel's GPU driver")
        self.precision = _precision(path, manifest, placement)
        openvino_device = self.device.upper().replace(":", ".")
        config: dict[str, Any] = {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": "1",
            "INFERENCE_PRECISION_HINT": _hint(
                self.precision, openvino.get_property(openvino_device, "OPTIMIZATION_CAPABILITIES")
            ),
        }
        if self.device == "cpu":
            # Two processes with pinned threads would share one core while another is idle.
            config |= {"ENABLE_CPU_PINNING": False, "INFERENCE_NUM_THREADS": placement.intra_threads}
        model = read_end_to_end(openvino, path, manifest)
        self.batch_size = model_batch_size(model)
        powers = [1 << exponent for exponent in range(manifest.batching.max_size.bit_length())]
        sizes = powers if self.batch_size is None else [self.batch_size]
        try:
            compiled = {size: openvino.compile_model(optimised(model, size), openvino_device, config) for size in sizes}
        except RuntimeError as error:
            raise EngineError(path, f"OpenVINO cannot compile this model: {error_reason(error)}") from error
        self._requests = {size: each.create_infer_request() for size, each in compiled.items()}
        self._heads = tuple(manifest.heads)
        self._manifest = manifest
        self._class_ids = class_id_heads(manifest)

    def infer(self, batch: Images) -> Outputs:
        """See `shared.inference.engine.Engine.infer`."""
        parts, start = [], 0
        while start < len(batch):
            size = max(size for size in self._requests if size <= len(batch) - start)
            parts.append(self._infer_part(batch[start : start + size]))
            start += size
        if len(parts) == 1:
            return parts[0]
        return {head: np.concatenate([part[head] for part in parts]) for head in self._heads}

    def close(self) -> None:
        """Releases the compiled models."""
        self._requests = {}

    def _infer_part(self, batch: Images) -> Outputs:
        """Infers a batch of one of the compiled sizes."""
        request = self._requests[len(batch)]
        try:
            request.infer([batch], share_inputs=True)
        except RuntimeError as error:
            raise InferenceError(f"the model failed: {error_reason(error)}") from error
        # The next batch overwrites the request's tensors, so they are copied.
        outputs = {head: np.array(request.get_output_tensor(place).data) for place, head in enumerate(self._heads)}
        return checked_heads(outputs, self._class_ids, self._manifest)


def _precision(path: Path, manifest: Manifest, placement: Placement) -> Precision:
    """Returns the requested precision, or the file's; fp16 files run in fp32, because CPUs are slow at fp16.

    Raises:
        EngineError: int8 was requested for a file that is not int8, or another precision for an int8 file.
    """
    default = Precision.FP32 if manifest.precision is Precision.FP16 else manifest.precision
    requested = placement.precision or default
    if Precision.INT8 in (requested, manifest.precision) and requested is not manifest.precision:
        to_int8 = requested is Precision.INT8
        remedy = "quantise it with `skylane model quantize`" if to_int8 else "leave the precision out"
        raise EngineError(path, f"holds {manifest.precision} numbers and cannot be run in {requested}: {remedy}")
    return requested


def _hint(precision: Precision, capabilities: list[str]) -> str:
    """Returns OpenVINO's precision hint; in an int8 model, it applies to the layers that are not quantised.

    Raises:
        DeviceError: the device cannot compute in the precision.
    """
    if precision is Precision.INT8:
        return "bf16" if "BF16" in capabilities else "f32"
    if precision is not Precision.FP32 and precision.upper() not in capabilities:
        known = [str(each) for each in Precision if each.upper() in capabilities]
        raise DeviceError("cpu", f"this processor does not compute in {precision}: use {' or '.join(known) or 'fp32'}")
    return _HINTS[precision]
