"""Writing OpenVINO's files, model.xml and model.bin, from whatever format OpenVINO's engine reads."""

from pathlib import Path

from cloud.engines.openvino.graph import IR_NAME, model_batch_size, read_end_to_end, told
from cloud.engines.openvino.library import core, ov
from cloud.models.manifest import Manifest
from modelling.conversion.errors import ConversionError


def write_openvino(path: Path, manifest: Manifest, folder: Path, *, half: bool) -> int | None:
    """Write a folder; its tensors are "images", uint8 N×H×W×3, and the heads. Returns the batch that is baked in.

    `half`: the weights are float16.

    Raises:
        EngineError: the file is not what the manifest says.
        ConversionError: OpenVINO cannot write it.
    """
    whole = read_end_to_end(core(), path, manifest)
    folder.mkdir()
    try:
        ov.save_model(whole, folder / IR_NAME, compress_to_fp16=half)
    except RuntimeError as error:
        raise ConversionError("openvino", told(error)) from error
    return model_batch_size(whole)
