"""Real gRPC servers that have a Keras model, on the public stubs of Triton and of TensorFlow Serving."""

import threading
from collections.abc import Callable, Mapping
from concurrent import futures
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import numpy as np
import yaml

from cloud.engines.tensorflow.library import tf
from cloud.models.model import Model
from tests.support.tiny_models import HEIGHT, WIDTH, keras

grpc: Any = import_module("grpc")
apis: Any = import_module("tensorflow_serving.apis.prediction_service_pb2_grpc")
predict: Any = import_module("tensorflow_serving.apis.predict_pb2")
metadata: Any = import_module("tensorflow_serving.apis.get_model_metadata_pb2")
saved_model: Any = import_module("tensorflow.core.protobuf.saved_model_pb2")
triton: Any = import_module("tritonclient.grpc.service_pb2")
triton_apis: Any = import_module("tritonclient.grpc.service_pb2_grpc")
triton_types: Any = import_module("tritonclient.utils")

MODEL, SIGNATURE, INPUT = "there", "serving_default", "images"
Arrays = dict[str, np.ndarray[Any, Any]]


class Server:
    """A server of one model, which tests make slow, wrong, or gone; end it with `stop`, or use it in a `with`."""

    def __init__(self, network: Callable[[Any], Arrays], described: dict[str, Any], tmp_path: Path) -> None:
        """`network`: float N×H×W×3 to arrays by name. `described`: by name, a shape (None: open) and dtype of each."""
        self.network, self.described, self.folder = network, described, tmp_path
        self.version = "3"
        self.batches: list[int] = []  # Sizes, as they came.
        self.spoil: Callable[[Arrays], Arrays] = lambda arrays: arrays  # What is done to every answer.
        self.hold = threading.Event()  # While it is clear, nothing is answered.
        self.hold.set()
        self.asked: list[Mapping[str, str]] = []  # The metadata of each call.
        self._address = "127.0.0.1:0"
        self._server: Any = None
        self.start()

    @property
    def address(self) -> str:
        """Where it listens, also when it was stopped and started."""
        return self._address

    def start(self, credentials: Any = None) -> None:
        """Listen, at the same address as before."""
        self._server = grpc.server(
            futures.ThreadPoolExecutor(4, thread_name_prefix="remote"),
            options=(("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)),
        )
        self._add(self._server)
        if credentials is None:
            port = self._server.add_insecure_port(self._address)
        else:
            port = self._server.add_secure_port(self._address, credentials)
        self._address = f"{self._address.rpartition(':')[0]}:{port}"
        self._server.start()

    def stop(self) -> None:
        """Hang up on everybody."""
        self.hold.set()
        self._server.stop(0).wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _add(self, server: Any) -> None:
        raise NotImplementedError

    def _infer(self, images: Any, context: Any) -> Arrays:
        self.asked.append(dict(context.invocation_metadata()))
        self.batches.append(len(images))
        self.hold.wait(_LINE_S)
        if float(images.ravel()[0]) == _FATAL:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "this picture is not for me")
        return self.spoil(self.network(images))


_LINE_S = 60.0
_FATAL = 999.0  # The first number of an input that the servers refuse.


class OpenInferenceServer(Server, triton_apis.GRPCInferenceServiceServicer):  # type: ignore[misc]  # It is untyped.
    """Speaks the Open Inference Protocol, by the stubs of Triton's client."""

    def _add(self, server: Any) -> None:
        triton_apis.add_GRPCInferenceServiceServicer_to_server(self, server)

    def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802 - The protocol's name.
        """What the model takes and gives."""
        if request.name != MODEL:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{request.name}' is not found")
        told = triton.ModelMetadataResponse(name=MODEL, versions=[self.version], platform="test")
        for name, (shape, dtype) in self.described.items():
            part = told.inputs if name == INPUT else told.outputs
            datatype = triton_types.np_to_triton_dtype(np.dtype(dtype))
            part.add(name=name, datatype=datatype, shape=[-1 if side is None else side for side in shape])
        return told

    def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802 - The protocol's name.
        """Infer."""
        (tensor,) = request.inputs
        images = np.frombuffer(request.raw_input_contents[0], np.float32).reshape(tuple(tensor.shape))
        told = triton.ModelInferResponse(model_name=MODEL, model_version=self.version)
        arrays = self._infer(images, context)
        for name in (output.name for output in request.outputs if output.name in arrays):
            values = arrays[name]
            told.outputs.add(name=name, datatype=triton_types.np_to_triton_dtype(values.dtype), shape=values.shape)
            told.raw_output_contents.append(values.tobytes())
        return told


class TensorFlowServer(Server, apis.PredictionServiceServicer):  # type: ignore[misc]  # It is untyped.
    """Speaks TensorFlow Serving's PredictionService, by its public stubs, of a SavedModel."""

    def _add(self, server: Any) -> None:
        apis.add_PredictionServiceServicer_to_server(self, server)

    def GetModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802 - The protocol's name.
        """The signatures in the SavedModel's own file."""
        if request.model_spec.name != MODEL:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Could not find any versions of model {request.model_spec.name}")
        graph = saved_model.SavedModel.FromString((self.folder / "saved_model.pb").read_bytes()).meta_graphs[0]
        told = metadata.GetModelMetadataResponse()
        told.model_spec.name = MODEL
        told.model_spec.version.value = int(self.version)
        signatures = metadata.SignatureDefMap()
        signatures.signature_def[SIGNATURE].CopyFrom(graph.signature_def[SIGNATURE])
        ends = signatures.signature_def[SIGNATURE]
        for name in self.described.keys() - {*ends.inputs, *ends.outputs}:
            ends.outputs[name].dtype = 1
        told.metadata["signature_def"].Pack(signatures)
        return told

    def Predict(self, request: Any, context: Any) -> Any:  # noqa: N802 - The protocol's name.
        """Infer."""
        told = predict.PredictResponse()
        told.model_spec.name = MODEL
        told.model_spec.version.value = int(self.version)
        arrays = self._infer(tf.make_ndarray(request.inputs[INPUT]), context)
        for name in request.output_filter:
            if name in arrays:
                told.outputs[name].CopyFrom(_typed(arrays[name]))
        return told


def _typed(values: Any) -> Any:
    """A TensorProto as TensorFlow Serving answers: the numbers in the list of their type."""
    proto = tf.make_tensor_proto(values)
    if proto.tensor_content:
        proto.ClearField("tensor_content")
        lists = {"float32": "float_val", "float64": "double_val", "int64": "int64_val"}
        getattr(proto, lists.get(values.dtype.name, "int_val")).extend(values.ravel().tolist())
    return proto


SERVERS = {"open_inference": OpenInferenceServer, "tensorflow_serving": TensorFlowServer}


def serve(root: Path, task: str, form: str, folder: Path) -> Server:
    """Serve the Keras model of a task that `tiny.write` wrote to `root`, by its SavedModel, written to `folder`."""
    manifest = yaml.safe_load((root / task / "model.yaml").read_text())
    heads = [manifest["output"]] if "output" in manifest else list(manifest["outputs"].values())
    names = [head["tensor"] for head in heads]
    network = keras.saving.load_model(root / task / "model.keras")

    served = tf.function(
        lambda images: dict(zip(names, tf.nest.flatten(network(images)), strict=True)),
        input_signature=[tf.TensorSpec((None, HEIGHT, WIDTH, 3), tf.float32, name=INPUT)],
    )
    module = tf.Module()
    module.network, module.served = network, served
    tf.saved_model.save(module, str(folder), signatures={SIGNATURE: served})
    signature = tf.saved_model.load(str(folder)).signatures[SIGNATURE]

    def infer(images: Any) -> Arrays:
        return {name: values.numpy() for name, values in signature(**{INPUT: tf.constant(images)}).items()}

    described = {INPUT: ((None, HEIGHT, WIDTH, 3), "float32")}
    for name, spec in signature.structured_outputs.items():
        described[name] = (tuple(spec.shape), spec.dtype.as_numpy_dtype)
    return SERVERS[form](infer, described, folder)


def write(  # noqa: PLR0917 - What is written, where, and what of it is special.
    root: Path, task: str, form: str, address: str, name: str, remote: Mapping[str, Any] | None = None, **changes: Any
) -> Path:
    """Write the manifest of a model of `task` that is served at `address`; returns its folder.

    `remote`: more keys of that section; `changes` are laid over the manifest.
    """
    manifest = yaml.safe_load((root / task / "model.yaml").read_text())
    for key in ("file", "sha256", "name"):
        manifest.pop(key, None)
    manifest |= {"format": form, "remote": {"address": address, "model": MODEL, **(remote or {})}, **changes}
    folder = root / name
    folder.mkdir()
    (folder / "model.yaml").write_text(yaml.safe_dump(manifest))
    return folder


def await_line(model: Model) -> None:
    """Return once a remote model's channel has its server again."""
    engine: Any = model._engine
    grpc.channel_ready_future(engine._line._channel).result(_LINE_S)
