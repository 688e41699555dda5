"""The TorchScript engine, on the CPU or a CUDA GPU."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from shared.errors import error_reason
from shared.inference.engine import EngineError, Images, InferenceError, Outputs, choose_device
from shared.inference.pre_postprocess import (
    Array,
    Preprocessor,
    check_output,
    file_precision,
    postprocess,
)
from shared.inference.tensor_binding import TensorInfo, check_other_inputs, find_tensor
from shared.models.manifest import Manifest, Placement

torch: Any = import_module("torch")  # Any: its type hints take mypy minutes.


class TorchScriptEngine:
    """Runs a TorchScript file.

    The manifest's input is the name of an argument of `forward`. If `forward` returns a dict, the outputs are its keys;
    if it returns a tensor or several, they are the positions "0", "1" and so on.

    A TorchScript declares no shapes, so the constructor runs it on a black image to find out whether it takes N×3×H×W or
    N×H×W×3. A TorchScript can compute with tensors only: it has no access to files, network or imports, and loading it
    unpickles no Python object. Damaged files may still crash the process; the repository's hash excludes them.
    """

    def __init__(self, path: Path, manifest: Manifest, placement: Placement) -> None:
        """Loads the module onto its device and runs it once.

        Raises:
            EngineError: the file is not a valid TorchScript, or does not match the manifest.
            DeviceError: the device is missing.
        """
        self.name = "torchscript"
        self.precision = file_precision(manifest, placement, self.name, path)
        self.device = choose_device(
            placement.device, torch.cuda.device_count(), "PyTorch", "install a PyTorch with CUDA"
        )
        self.batch_size = None
        self._manifest, self._path = manifest, path
        self._torch_device = torch.device(self.device.replace("gpu", "cuda"))
        if placement.intra_threads:
            torch.set_num_threads(placement.intra_threads)  # PyTorch has this setting for the whole process only.
        self._module = _load(path, self._torch_device, manifest)
        self._constants = _constants(self._module, manifest, path)
        self._preprocessor = self._find_preprocessor()

    def infer(self, batch: Images) -> Outputs:
        """See `shared.inference.engine.Engine.infer`."""
        try:
            outputs = self._run(batch, self._preprocessor)
        except (RuntimeError, ValueError) as error:
            raise InferenceError(f"the model failed: {_last_line(error)}") from error
        return {
            head: postprocess(head, outputs[section.tensor], self._preprocessor, self._manifest, self._path)
            for head, section in self._manifest.heads.items()
        }

    def close(self) -> None:
        """Releases the module; GPU memory returns to PyTorch's pool."""
        self._module = None

    def _run(self, batch: Images, preprocessor: Preprocessor) -> dict[str, Array]:
        """Returns the model's outputs by name; the copy to host memory waits for the device."""
        with torch.inference_mode():
            images = torch.from_numpy(preprocessor(batch)).to(self._torch_device)
            returned = self._module(images, **self._constants)
            return {name: tensor.cpu().numpy() for name, tensor in _by_name(returned).items()}

    def _find_preprocessor(self) -> Preprocessor:
        """Returns the preprocessor for the axis order that the module accepts, and checks the outputs."""
        section = self._manifest.input
        black = np.zeros((1, section.height, section.width, 3), np.uint8)
        problems = []
        for planar in (True, False):
            preprocessor = Preprocessor(section, planar, None)
            try:
                outputs = self._run(black, preprocessor)
                for head, output in self._manifest.heads.items():
                    tensor = find_tensor(outputs, output.tensor, "output", self._path)
                    check_output(head, tensor.shape, preprocessor, self._manifest, self._path)
                    postprocess(head, tensor, preprocessor, self._manifest, self._path)
            except (RuntimeError, ValueError) as error:
                problems.append(EngineError(self._path, f"fails on a black image: {_last_line(error)}"))
            except EngineError as error:
                problems.insert(0, error)  # The module ran, so this error is more informative.
            except InferenceError:
                return preprocessor  # NaN for a black image need not mean NaN for a frame.
            else:
                return preprocessor
        raise problems[0]


def tensors_of(path: Path, size: tuple[int, int]) -> tuple[dict[str, TensorInfo], dict[str, TensorInfo]]:
    """Returns the image input and the outputs by name, from a run on a black image of `size`, height and width.

    The image is N×3×H×W, or N×H×W×3 if the module fails on the former.

    Raises:
        EngineError: the module cannot be loaded, needs other inputs, or returns other than tensors.
    """
    module = _module(path, torch.device("cpu"))
    image, *others = module.forward.schema.arguments[1:] or [None]
    required = [each.name for each in others if not each.has_default_value()]
    if image is None or required:
        problem = f"takes {', '.join(required)} besides an image" if required else "takes no image"
        raise EngineError(path, f"{problem}: script a module whose forward takes an image alone")
    is_half = next((each.dtype == torch.float16 for each in module.parameters()), False)
    problems = []
    for shape in ((1, 3, *size), (1, *size, 3)):
        black = torch.zeros(shape, dtype=torch.float16 if is_half else torch.float32)
        try:
            with torch.inference_mode():
                outputs = _by_name(module(black))
        except (RuntimeError, ValueError) as error:
            problems.append(f"fails on a black image of {size[0]}×{size[1]}: {_last_line(error)}")
            continue
        return {image.name: _info(image.name, black)}, {name: _info(name, each) for name, each in outputs.items()}
    raise EngineError(path, problems[0])


def _info(name: str, tensor: Any) -> TensorInfo:
    """Describes a tensor for any number of images."""
    return TensorInfo(name, str(tensor.dtype).removeprefix("torch."), (None, *tensor.shape[1:]) if tensor.ndim else ())


def _module(path: Path, device: Any) -> Any:
    """Loads the module in inference mode; raises EngineError if it is no valid TorchScript with a `forward`."""
    try:
        with _without_deprecation_warnings(), path.open("rb") as file:
            module = torch.jit.load(file, map_location=device).eval()
            module.forward.schema  # noqa: B018 - raises AttributeError if there is none.
            return module
    except OSError as error:
        raise EngineError(path, f"cannot be read ({error.strerror})") from error
    except (RuntimeError, ValueError, AttributeError) as error:
        raise EngineError(path, f"PyTorch cannot load this TorchScript: {error_reason(error)}") from error


def _load(path: Path, device: Any, manifest: Manifest) -> Any:
    """Loads the module with its weights frozen as constants."""
    module = _module(path, device)
    names = [argument.name for argument in module.forward.schema.arguments[1:]]
    find_tensor(dict.fromkeys(names), manifest.input.tensor, "input", path)
    try:
        with _without_deprecation_warnings():
            frozen = torch.jit.freeze(module)
            return torch.jit.optimize_for_inference(frozen) if device.type == "cpu" else frozen
    except (RuntimeError, ValueError, AttributeError) as error:
        raise EngineError(path, f"PyTorch cannot load this TorchScript: {error_reason(error)}") from error


def _constants(module: Any, manifest: Manifest, path: Path) -> dict[str, Any]:
    """Returns the manifest's values for the arguments other than the image."""
    others = [each for each in module.forward.schema.arguments[1:] if each.name != manifest.input.tensor]
    required = [each.name for each in others if not each.has_default_value()]
    check_other_inputs(required, manifest, path)
    return {each.name: manifest.input.constants[each.name] for each in others if each.name in manifest.input.constants}


def _by_name(returned: Any) -> dict[str, Any]:
    """Returns the result of `forward` as tensors by key or by position; raises ValueError if it holds others."""
    if not isinstance(returned, dict):
        returned = dict(enumerate(returned if isinstance(returned, (list, tuple)) else [returned]))
    for key, each in returned.items():
        if not isinstance(each, torch.Tensor):
            raise ValueError(  # noqa: TRY004 - a value in the file is wrong, not an argument.
                f"its output {key!r} is a {type(each).__name__}, not a tensor: wrap it in one that returns tensors"
            )
    return {str(key): each for key, each in returned.items()}


def _last_line(error: Exception) -> str:
    """Returns the last line of an error; the lines before it are the TorchScript stack."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__


@contextmanager
def _without_deprecation_warnings() -> Iterator[None]:
    """Ignores PyTorch's advice to use torch.export, which cannot load existing TorchScript files."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is deprecated", DeprecationWarning)
        yield
