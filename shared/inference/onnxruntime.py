"""The ONNX Runtime engine: ONNX files on the CPU or a CUDA GPU."""

from importlib import import_module
from pathlib import Path
from typing import Any

from shared.errors import error_reason
from shared.inference.engine import DeviceError, EngineError, Images, InferenceError, Outputs, choose_device
from shared.inference.onnx_weights import checked_onnx_file
from shared.inference.pre_postprocess import file_precision
from shared.inference.tensor_binding import TensorBinding, TensorInfo
from shared.messages.tensors import NUMBER_TYPES
from shared.models.manifest import Manifest, Placement

ort: Any = import_module("onnxruntime")  # Any: the package has no type hints.

_CUDA = "CUDAExecutionProvider"
_NO_FOLDER = "/nonexistent"  # The folder for external weights of a single file, which may have none.
_FATAL = 4  # ONNX Runtime's log level for fatal errors; all other errors are exceptions.
_OLDER = (
    " Export it for a version that it reads (opset_version of torch.onnx.export, ir_version of onnx), or use a newer "
    "onnxruntime"
)
_DTYPES = {f"tensor({each.dtype})": each.dtype for each in NUMBER_TYPES} | {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(string)": "bytes",
}


class OnnxRuntimeEngine:
    """Runs an ONNX file; the manifest's tensors are the names of its inputs and outputs.

    The file is one `.onnx` that contains its weights, or a folder with one `.onnx` and its weights: nothing is read that
    the manifest's hash does not cover (`shared.inference.onnx_weights`). Custom operations are not registered, so a file that uses them is refused.
    """

    def __init__(self, path: Path, manifest: Manifest, placement: Placement) -> None:
        """Opens a session.

        Raises:
            EngineError: the file is not a valid ONNX model, or does not match the manifest.
            DeviceError: the device is missing.
        """
        self.name = "onnxruntime"
        self.precision = file_precision(manifest, placement, self.name, path)
        gpus = 1 if _CUDA in ort.get_available_providers() else 0
        if gpus and placement.device.startswith("gpu:"):
            gpus = 1000  # ONNX Runtime does not report the number of GPUs; opening the session checks the index.
        self.device = choose_device(placement.device, gpus, "ONNX Runtime", "install onnxruntime-gpu")
        self._session = open_session(path, self.device, placement)
        if self.device != "cpu" and _CUDA not in self._session.get_providers():
            if placement.device != "auto":
                raise DeviceError(
                    placement.device, "ONNX Runtime cannot use this GPU: use cpu, or repair its CUDA setup"
                )
            self.device = "cpu"
        inputs, outputs = tensors_of(self._session)
        self._binding = TensorBinding(inputs, outputs, manifest, path)
        self.batch_size = self._binding.batch_size
        self._outputs = [tensor.name for tensor in self._binding.heads.values()]

    def infer(self, batch: Images) -> Outputs:
        """See `shared.inference.engine.Engine.infer`."""
        try:
            arrays = self._session.run(self._outputs, self._binding.inputs(batch))
        except Exception as error:  # ONNX Runtime's errors have no common base class.
            raise InferenceError(f"the model failed: {error_reason(error)}") from error
        return self._binding.outputs(dict(zip(self._outputs, arrays, strict=True)))

    def close(self) -> None:
        """Releases the session."""
        self._session = None


def open_session(path: Path, device: str = "cpu", placement: Placement = Placement()) -> Any:  # noqa: B008 - frozen.
    """Opens an onnxruntime.InferenceSession on a device, "cpu" or "gpu:N".

    Raises:
        EngineError: the file is not a valid ONNX model, or keeps weights outside of `path`.
    """
    file = checked_onnx_file(path)
    options = ort.SessionOptions()
    options.intra_op_num_threads = placement.intra_threads
    options.inter_op_num_threads = placement.inter_threads
    options.log_severity_level = _FATAL
    # Spinning threads use 1.4 times the CPU time, which decoding and other models need.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    providers: list[Any] = ["CPUExecutionProvider"]
    if device != "cpu":
        providers.insert(0, (_CUDA, {"device_id": int(device.partition(":")[2])}))
    try:
        if path.is_dir():
            return ort.InferenceSession(str(file), options, providers=providers)
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", _NO_FOLDER)
        return ort.InferenceSession(path.read_bytes(), options, providers=providers)
    except OSError as error:
        raise EngineError(path, f"cannot be read ({error.strerror})") from error
    except Exception as error:  # ONNX Runtime's errors have no common base class.
        reason = error_reason(error)
        is_newer = "IR version" in reason or "opset" in reason
        raise EngineError(path, f"ONNX Runtime cannot load this file: {reason}{_OLDER if is_newer else ''}") from error


def tensors_of(session: Any) -> tuple[dict[str, TensorInfo], dict[str, TensorInfo]]:
    """Returns the inputs and the outputs of a session by name; a symbolic or unknown dimension is None."""
    inputs, outputs = (
        {
            tensor.name: TensorInfo(
                tensor.name,
                _DTYPES.get(tensor.type),
                tuple(side if isinstance(side, int) and side > 0 else None for side in tensor.shape),
            )
            for tensor in tensors
        }
        for tensors in (session.get_inputs(), session.get_outputs())
    )
    return inputs, outputs
