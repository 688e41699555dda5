"""The table of all engines: an engine is one module with a class, and one line here."""

from typing import NamedTuple

from shared.errors import SkylaneError, UnknownNameError


class EngineEntry(NamedTuple):
    """The import path of an engine ("module:attribute"), the pip extra of its library, and the formats it reads."""

    path: str
    extra: str
    formats: tuple[str, ...]


# Paths instead of classes, so that this module imports no framework. The first reader of a format is its default.
ENGINES = {
    "tensorflow": EngineEntry(
        "cloud.engines.tensorflow.engine:TensorFlowEngine", "cloud", ("frozen_graph", "saved_model", "keras")
    ),
    "onnxruntime": EngineEntry("cloud.engines.onnxruntime:OnnxRuntimeEngine", "onnx", ("onnx",)),
    "tflite": EngineEntry("cloud.engines.tflite:TfliteEngine", "tflite", ("tflite",)),
    "torchscript": EngineEntry("cloud.engines.torchscript:TorchScriptEngine", "torch", ("torchscript",)),
    "openvino": EngineEntry(
        "cloud.engines.openvino.engine:OpenVinoEngine",
        "openvino",
        ("openvino", "frozen_graph", "saved_model", "onnx", "tflite"),
    ),
    "triton": EngineEntry("cloud.engines.remote.triton:TritonEngine", "transports", ("open_inference",)),
    "tf_serving": EngineEntry("cloud.engines.remote.tf_serving:TfServingEngine", "transports", ("tensorflow_serving",)),
}
AUTO = "auto"  # A manifest's `engine`: the fastest one on this host whose labels agree with the reference engine.


def formats() -> tuple[str, ...]:
    """Returns the formats of model files that an engine reads, and the protocols of remote servers."""
    return tuple(dict.fromkeys(form for entry in ENGINES.values() for form in entry.formats))


def readers(form: str) -> tuple[str, ...]:
    """Returns the engines that read a format; the first one is its default."""
    return tuple(name for name, entry in ENGINES.items() if form in entry.formats)


def engine_for(form: str, engine: str | None) -> str:
    """Returns the requested engine, by default that of the format.

    Raises:
        UnknownNameError: the engine does not exist.
        SkylaneError: it does not read the format; the message lists engines that do.
    """
    engines = readers(form)
    if engine is None:
        return engines[0]
    if engine not in ENGINES:
        raise UnknownNameError("engine", engine, ENGINES)
    if engine not in engines:
        raise SkylaneError(f"engine {engine!r} does not read {form}: use {', '.join(engines)}, or convert the model")
    return engine
