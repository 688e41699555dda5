"""The table of all engines, with those that a vehicle can use too: an engine is one module with a class, and one line here."""

from collections.abc import Mapping
from typing import NamedTuple

from shared.errors import SkylaneError, UnknownNameError
from shared.registry import PluginTable, names_of

DEVICE_NAME = r"^(auto|cpu|gpu(:[0-9]{1,3})?)$"

DEVICE_RULE = "auto, cpu or gpu:N"


class EngineEntry(NamedTuple):
    """The import path of an engine ("module:attribute"), the pip extra of its library, and the formats it reads."""

    path: str
    extra: str
    formats: tuple[str, ...]


# Paths instead of classes, so that this module imports no framework.
LOCAL_ENGINES = {
    "onnxruntime": EngineEntry("shared.inference.onnxruntime:OnnxRuntimeEngine", "local", ("onnx",)),
    "tflite": EngineEntry("shared.inference.tflite:TfliteEngine", "local", ("tflite",)),
}


def formats_of(engines: Mapping[str, EngineEntry]) -> tuple[str, ...]:
    """Returns the formats of model files that the engines read, and the protocols of remote servers."""
    return tuple(dict.fromkeys(form for entry in engines.values() for form in entry.formats))


def choose_engine(engines: Mapping[str, EngineEntry], form: str, engine: str | None) -> str:
    """Returns the requested one of `engines`, by default the first that reads the format.

    Raises:
        UnknownNameError: no engine reads the format, or the engine does not exist.
        SkylaneError: the engine does not read the format; the message lists engines that do.
    """
    if engine is not None and engine in engines and form in engines[engine].formats:
        return engine
    readers = tuple(name for name, entry in engines.items() if form in entry.formats)
    if not readers:
        raise UnknownNameError("format", form, formats_of(engines))
    if engine is None:
        return readers[0]
    if engine not in engines:
        raise UnknownNameError("engine", engine, names_of(engines))
    raise SkylaneError(f"engine {engine!r} does not read {form}: use {', '.join(readers)}, or convert the model")


# The first reader of a format is its default.
ENGINES = PluginTable(
    "engine",
    "skylane.engines",
    EngineEntry,
    {
        "tensorflow": EngineEntry(
            "cloud.engines.tensorflow.engine:TensorFlowEngine", "cloud", ("frozen_graph", "saved_model", "keras")
        ),
        **LOCAL_ENGINES,
        "torchscript": EngineEntry("cloud.engines.torchscript:TorchScriptEngine", "torch", ("torchscript",)),
        "openvino": EngineEntry(
            "cloud.engines.openvino.engine:OpenVinoEngine",
            "openvino",
            ("openvino", "frozen_graph", "saved_model", "onnx", "tflite"),
        ),
        "triton": EngineEntry("cloud.engines.remote.triton:TritonEngine", "transports", ("open_inference",)),
        "tf_serving": EngineEntry(
            "cloud.engines.remote.tf_serving:TfServingEngine", "transports", ("tensorflow_serving",)
        ),
    },
)


def local_engines(engine: str | None) -> Mapping[str, EngineEntry]:
    """Returns the engines that a vehicle can use for a model whose manifest names `engine`, which may be a plug-in."""
    if engine is not None and ENGINES.is_external(engine):
        return {engine: ENGINES[engine], **LOCAL_ENGINES}
    return LOCAL_ENGINES


AUTO = "auto"  # A manifest's `engine`: the fastest one on this host whose labels agree with the reference engine.


def formats() -> tuple[str, ...]:
    """Returns the formats of model files that an engine reads, and the protocols of remote servers."""
    return formats_of(ENGINES)


def readers(form: str) -> tuple[str, ...]:
    """Returns the engines that read a format; the first one is its default."""
    return tuple(name for name, entry in ENGINES.items() if form in entry.formats)
