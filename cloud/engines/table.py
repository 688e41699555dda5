"""The table of all engines: an engine is one module with a class, and one line here."""

from shared.inference.table import LOCAL_ENGINES, EngineEntry, formats_of

# The first reader of a format is its default.
ENGINES = {
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
    "tf_serving": EngineEntry("cloud.engines.remote.tf_serving:TfServingEngine", "transports", ("tensorflow_serving",)),
}
AUTO = "auto"  # A manifest's `engine`: the fastest one on this host whose labels agree with the reference engine.


def formats() -> tuple[str, ...]:
    """Returns the formats of model files that an engine reads, and the protocols of remote servers."""
    return formats_of(ENGINES)


def readers(form: str) -> tuple[str, ...]:
    """Returns the engines that read a format; the first one is its default."""
    return tuple(name for name, entry in ENGINES.items() if form in entry.formats)
