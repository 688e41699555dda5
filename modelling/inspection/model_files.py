"""Recognises files that are no model to run, and copies a model with all the files that it needs."""

import re
import shutil
from pathlib import Path

from shared.files import missing_content
from shared.inference.engine import EngineError
from shared.inference.onnx_weights import weight_files

_BLOCK_BYTES = 1 << 20
_HEAD_BYTES = 4096

_CHECKPOINT = (
    "is part of a checkpoint, which holds variables and no network: give the network as SavedModel or frozen graph"
)
_WEIGHTS = "holds weights and no network: load them into the network, and export that, for example to ONNX"
_OTHER_TOOL = "is a model of another tool, which no engine here reads: export it to ONNX"
_PICKLE = (
    "is a Python pickle, such as torch.save writes, which is never loaded because it can run any code: load it in "
    "your own code, and save the network with torch.jit.script(network).save('model.pt'), or as ONNX"
)
# The start of a file, and its kind. The supported binary formats do not begin with any of these.
_BEGINNINGS: tuple[tuple[bytes, str], ...] = (
    (rb"\s*<(!doctype )?html", "is a web page: download the file itself"),
    (rb"\x80[\x02-\x05](?!..TFL3)", _PICKLE),
    (
        rb"(#[^\n]*\n|\s)*(node|library|versions|meta_graphs|saved_model_schema_version)\s*[:{]",
        "is a graph as text: write it in binary form, with tf.io.write_graph(…, as_text=False)",
    ),
    (
        rb"\{\s*\"",
        "is JSON, which holds no weights: load both with Keras (model_from_json), and save them with model.save",
    ),
    (rb"(<\?xml[^>]*>)?\s*<net ", "is an OpenVINO graph: name it model.xml, beside model.bin, and give their folder"),
)
_NAMES = (  # The name of a file.
    (r"checkpoint|.*\.(index|meta|data-\d+-of-\d+|ckpt(-\d+)?)", _CHECKPOINT),
    (r".*\.onnx[._-]?data", "holds weights of an ONNX file: give the .onnx file beside it"),
    (r".*\.(safetensors|npz|npy|bin|weights|params|pdiparams|caffemodel)", _WEIGHTS),
    (r".*\.(zip|tar|gz|tgz|bz2|xz|7z|rar)", "is an archive: unpack it, and give the model inside"),
    (r".*\.(engine|plan|trt|mlmodel|mlpackage|pdmodel|rknn|hef|om)", _OTHER_TOOL),
)
# Files in archives of PyTorch. A TorchScript, which can be run, has constants.pkl besides data.pkl.
_ARCHIVES = ((b"/archive_format", _OTHER_TOOL), (b"/data.pkl", _PICKLE))
_END_OF_ARCHIVE = b"PK\x05\x06"


def refuse_other_files(path: Path) -> None:
    """Refuses what is no model to run, without loading it.

    Raises:
        EngineError: the path does not exist, or is such a file; the message says what it is and what to do.
    """
    try:
        problem = _problem(path)
    except OSError as error:
        raise EngineError(path, f"cannot be read ({error.strerror})") from error
    if problem is not None:
        raise EngineError(path, problem)


def _problem(path: Path) -> str | None:
    if path.is_dir():
        is_checkpoint = (path / "checkpoint").is_file() and not (path / "saved_model.pb").is_file()
        graph = path / "saved_model.pb"
        return _CHECKPOINT if is_checkpoint else _problem(graph) if graph.is_file() else None
    if not path.is_file():
        return "is not a file: give a model's file or folder" if path.exists() else "does not exist: check the path"
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    problems = [missing_content(head)] if missing_content(head) else []
    problems += [text for pattern, text in _BEGINNINGS if re.match(pattern, head, re.IGNORECASE | re.DOTALL)]
    if head.startswith(b"PK") and _contains(path, _END_OF_ARCHIVE) and not _contains(path, b"/constants.pkl"):
        problems += [text for name, text in _ARCHIVES if _contains(path, name)]
    if path.suffix.lower() == ".keras" and head.startswith(b"\x89HDF"):
        problems.append("is HDF5, which Keras reads by its name: name it .h5")
    problems += [text for pattern, text in _NAMES if re.fullmatch(pattern, path.name.lower())]
    return problems[0] if problems else None


def copy_model(path: Path, target: Path) -> None:
    """Copies a model's file or folder to `target`; if an ONNX file keeps weights in other files, `target` is a folder.

    Raises:
        EngineError: weights are missing or outside of the file's folder.
        OSError: a file cannot be read or written.
    """
    if path.is_dir():
        if path.resolve() != target.resolve():
            shutil.copytree(path, target, dirs_exist_ok=True)
        return
    names = weight_files(path) if path.suffix.lower() == ".onnx" else ()
    files = {path.parent / name: target / name for name in (path.name, *names)} if names else {path: target}
    for source, copy in files.items():
        if source.resolve() != copy.resolve():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)


def _contains(path: Path, text: bytes) -> bool:
    """Returns whether a file contains `text`, such as the name of a file in an archive."""
    end = b""
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            if text in end + block:
                return True
            end = block[-len(text) :]
    return False
