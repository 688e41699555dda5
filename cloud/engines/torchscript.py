"""The engine of TorchScript files, on the CPU or a CUDA GPU."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from cloud.engines.devices import choose
from cloud.engines.engine import EngineError, Images, InferenceError, Outputs, Placement
from cloud.engines.pre_postprocess import (
    Array,
    Feed,
    answer,
    check_other_inputs,
    check_output,
    file_precision,
    first_line,
    named,
)
from cloud.models.manifest import Manifest

torch: Any = import_module("torch")  # Any: its types take mypy minutes.


class TorchScriptEngine:
    """Runs a TorchScript file. The manifest's input is the name of `forward`'s argument; its outputs are keys, or places.

    A `forward` that returns a map names its outputs by key; one that returns a tensor, or several, by place: "0", "1".
    A TorchScript tells no shapes: it is tried once on a black picture, as N×3×H×W and, where that does not fit, as
    N×H×W×3. It is a program, but one of tensors only: TorchScript has no files, no network and no imports. Reading the
    file unpickles no Python object. Neither is a promise about damaged files, hence the repository's hash.
    """

    def __init__(self, path: Path, manifest: Manifest, placement: Placement) -> None:
        """Load the module onto its device and try it.

        Raises:
            EngineError: the file is no TorchScript that runs here, or not what the manifest says.
            DeviceError: the device is not there.
        """
        self.name = "torchscript"
        self.precision = file_precision(manifest, placement, self.name, path)
        self.device = choose(placement.device, torch.cuda.device_count(), "PyTorch", "install a PyTorch with CUDA")
        self.batch_size = None
        self._manifest, self._path = manifest, path
        self._place = torch.device(self.device.replace("gpu", "cuda"))
        if placement.intra_threads:
            torch.set_num_threads(placement.intra_threads)  # Of the whole process: PyTorch has no other setting.
        self._module = _loaded(path, self._place, manifest)
        self._constants = _constants(self._module, manifest, path)
        self._feed = self._tried()

    def infer(self, batch: Images) -> Outputs:
        """As `cloud.engines.engine.Engine.infer`."""
        try:
            found = self._run(batch, self._feed)
        except (RuntimeError, ValueError) as error:
            raise InferenceError(f"the model failed: {_cause(error)}") from error
        return {
            head: answer(head, found[section.tensor], self._feed, self._manifest, self._path)
            for head, section in self._manifest.heads.items()
        }

    def close(self) -> None:
        """Release the module; the GPU's memory goes back to PyTorch's own pool."""
        self._module = None

    def _run(self, batch: Images, feed: Feed) -> dict[str, Array]:
        """The model's outputs by name, in host memory: the copy waits for the device."""
        with torch.inference_mode():
            picture = torch.from_numpy(feed(batch)).to(self._place)
            given = self._module(picture, **self._constants)
            return {name: tensor.cpu().numpy() for name, tensor in _by_name(given).items()}

    def _tried(self) -> Feed:
        """How the picture lies in its input, by trying; checks the outputs against the manifest."""
        section = self._manifest.input
        black = np.zeros((1, section.height, section.width, 3), np.uint8)
        problems = []
        for planar in (True, False):
            feed = Feed(section, planar, None)
            try:
                found = self._run(black, feed)
                for head, output in self._manifest.heads.items():
                    tensor = named(found, output.tensor, "output", self._path)
                    check_output(head, tensor.shape, self._manifest, self._path)
                    answer(head, tensor, feed, self._manifest, self._path)
            except (RuntimeError, ValueError) as error:
                problems.append(EngineError(self._path, f"fails on a black picture: {_cause(error)}"))
            except EngineError as error:
                problems.insert(0, error)  # It ran: what did not fit says more.
            except InferenceError:
                return feed  # NaN of a black picture: each frame will tell.
            else:
                return feed
        raise problems[0]


def _loaded(path: Path, place: Any, manifest: Manifest) -> Any:
    """The module, in inference mode, its weights made constants."""
    try:
        with _deprecations_known(), path.open("rb") as file:
            module = torch.jit.load(file, map_location=place).eval()
            names = [argument.name for argument in module.forward.schema.arguments[1:]]
            named(dict.fromkeys(names), manifest.input.tensor, "input", path)
            frozen = torch.jit.freeze(module)
            return torch.jit.optimize_for_inference(frozen) if place.type == "cpu" else frozen
    except OSError as error:
        raise EngineError(path, f"cannot be read ({error.strerror})") from error
    except (RuntimeError, ValueError, AttributeError) as error:
        raise EngineError(path, f"PyTorch cannot load this TorchScript: {first_line(error)}") from error


def _constants(module: Any, manifest: Manifest, path: Path) -> dict[str, Any]:
    """What to give for the other arguments that have no default."""
    others = [each for each in module.forward.schema.arguments[1:] if each.name != manifest.input.tensor]
    check_other_inputs(
        [each.name for each in others if not each.has_default_value()], list(manifest.input.constants), path
    )
    return {each.name: manifest.input.constants[each.name] for each in others if each.name in manifest.input.constants}


def _by_name(given: Any) -> dict[str, Any]:
    """What `forward` returned, by key or by place."""
    if isinstance(given, dict):
        return given
    parts = given if isinstance(given, (list, tuple)) else [given]
    return {str(place): tensor for place, tensor in enumerate(parts)}


def _cause(error: Exception) -> str:
    """The last line: before it stands where in TorchScript it was raised."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__


@contextmanager
def _deprecations_known() -> Iterator[None]:
    """PyTorch would have all of TorchScript replaced by torch.export; the files that there are stay TorchScript."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is deprecated", DeprecationWarning)
        yield
