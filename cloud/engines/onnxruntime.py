"""The engine of ONNX Runtime: ONNX files, on the CPU or a CUDA GPU."""

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from cloud.engines.devices import choose
from cloud.engines.engine import DeviceError, EngineError, Images, InferenceError, Outputs, Placement
from cloud.engines.pre_postprocess import (
    answer,
    check_other_inputs,
    check_output,
    file_precision,
    first_line,
    named,
    preprocessor_for,
)
from cloud.models.manifest import Manifest

ort: Any = import_module("onnxruntime")  # Any: it ships no types.

_CUDA = "CUDAExecutionProvider"
_NOWHERE = "/nonexistent"  # Where weights beside a single file are looked for.
_SEVERE = 4  # ONNX Runtime's log level: fatal errors only; what else goes wrong is raised.
_TYPES = {"tensor(float)": "float32", "tensor(double)": "float64", "tensor(bool)": "bool"} | {
    f"tensor({name})": name for name in ("float16", "int8", "uint8", "int16", "int32", "int64")
}


class OnnxRuntimeEngine:
    """Runs an ONNX file; the manifest's tensors are its inputs' and outputs' names.

    A file is one `.onnx` with its weights inside, or a folder that holds one `.onnx` and its weights: what the
    manifest's hash does not cover is not read. Operations of libraries outside ONNX Runtime are not known, hence refused.
    """

    def __init__(self, path: Path, manifest: Manifest, placement: Placement) -> None:
        """Open a session.

        Raises:
            EngineError: the file is no ONNX model that runs here, or not what the manifest says.
            DeviceError: the device is not there.
        """
        self.name = "onnxruntime"
        self.precision = file_precision(manifest, placement, self.name, path)
        gpus = 1 if _CUDA in ort.get_available_providers() else 0
        if gpus and placement.device.startswith("gpu:"):
            gpus = 1000  # How many there are is seen by trying: CUDA numbers them.
        self.device = choose(placement.device, gpus, "ONNX Runtime", "install onnxruntime-gpu")
        self._session = open_session(path, self.device, placement)
        if self.device != "cpu" and _CUDA not in self._session.get_providers():
            if placement.device != "auto":
                raise DeviceError(placement.device, "ONNX Runtime cannot use this GPU: use cpu, or mend its CUDA")
            self.device = "cpu"
        self._manifest, self._path = manifest, path
        inputs = {each.name: each for each in self._session.get_inputs()}
        outputs = {each.name: each for each in self._session.get_outputs()}
        picture = named(inputs, manifest.input.tensor, "input", path)
        self._heads = {head: named(outputs, section.tensor, "output", path) for head, section in manifest.heads.items()}
        self._feed = preprocessor_for(shape_of(picture), type_of(picture), manifest, path)
        self.batch_size = self._feed.batch_size
        for head, tensor in self._heads.items():
            check_output(head, shape_of(tensor), manifest, path)
        check_other_inputs([name for name in inputs if name != picture.name], list(manifest.input.constants), path)
        self._input = picture.name
        self._constants = {
            name: np.array(value, type_of(inputs[name])).reshape([side or 1 for side in shape_of(inputs[name])])
            for name, value in manifest.input.constants.items()
            if name in inputs
        }

    def infer(self, batch: Images) -> Outputs:
        """As `cloud.engines.engine.Engine.infer`."""
        names = [tensor.name for tensor in self._heads.values()]
        try:
            found = self._session.run(names, {self._input: self._feed(batch), **self._constants})
        except Exception as error:  # ONNX Runtime's errors have no base but this.
            raise InferenceError(f"the model failed: {first_line(error)}") from error
        return {
            head: answer(head, values, self._feed, self._manifest, self._path)
            for head, values in zip(self._heads, found, strict=True)
        }

    def close(self) -> None:
        """Release the session."""
        self._session = None


def open_session(path: Path, device: str = "cpu", placement: Placement = Placement()) -> Any:  # noqa: B008 - frozen.
    """An onnxruntime.InferenceSession on a device, "cpu" or "gpu:N".

    Raises:
        EngineError: the file is no ONNX model that runs here.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = placement.intra_threads
    options.inter_op_num_threads = placement.inter_threads
    options.log_severity_level = _SEVERE
    # Threads that spin for their next work take 1.4 times the processor time, from decoding and from other models.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    providers: list[Any] = ["CPUExecutionProvider"]
    if device != "cpu":
        providers.insert(0, (_CUDA, {"device_id": int(device.partition(":")[2])}))
    try:
        if path.is_dir():
            return ort.InferenceSession(str(_file_in(path)), options, providers=providers)
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", _NOWHERE)
        return ort.InferenceSession(path.read_bytes(), options, providers=providers)
    except OSError as error:
        raise EngineError(path, f"cannot be read ({error.strerror})") from error
    except EngineError:
        raise
    except Exception as error:  # ONNX Runtime's errors have no base but this.
        raise EngineError(path, f"ONNX Runtime cannot load this file: {first_line(error)}") from error


def _file_in(folder: Path) -> Path:
    found = sorted(folder.glob("*.onnx"))
    if len(found) != 1:
        raise EngineError(folder, f"holds {len(found)} .onnx files: give a folder with one and its weights")
    return found[0]


def type_of(tensor: Any) -> str:
    """The type of an input or output as NumPy names it; as ONNX Runtime does where a picture is none of it."""
    return _TYPES.get(tensor.type, str(tensor.type))


def shape_of(tensor: Any) -> list[int | None]:
    """The shape of an input or output; a side that is open has a name there, or nothing."""
    return [side if isinstance(side, int) and side > 0 else None for side in tensor.shape]
