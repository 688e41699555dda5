"""Real gRPC servers of a Keras model, with the public stubs of Triton and of TensorFlow Serving."""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from importlib import import_module
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import yaml

from cloud.engines.tensorflow.runtime import tf
from shared.inference.engine import ModelUnavailableError
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
T = TypeVar("T")


class Server:
    """A server of one model that tests can delay, corrupt, stop and restart. Use it as a context manager."""

    form: str  # The manifest's format for this kind of server.

    def __init__(self, network: Callable[[Any], Arrays], tensors: dict[str, Any], folder: Path) -> None:
        """Starts the server.

        Args:
            network: The model, from float N×H×W×3 to arrays by name.
            tensors: The declared shape (None for any size) and dtype of each input and output by name.
            folder: The folder of the SavedModel.
        """
        self.network, self.tensors, self.folder = network, tensors, folder
        self.version = "3"
        self.batches: list[int] = []  # The sizes of the received batches.
        self.corrupt: Callable[[Arrays], Arrays] = lambda arrays: arrays  # Applied to every result.
        self.answering = threading.Event()  # Calls wait while it is clear.
        self.answering.set()
        self.call_metadata: list[Mapping[str, str]] = []  # The metadata of each call.
        self._address = "127.0.0.1:0"
        self._server: Any = None
        self.start()

    @property
    def address(self) -> str:
        """HOST:PORT, which stays the same after a restart."""
        return self._address

    def start(self, credentials: Any = None) -> None:
        """Listens, at the same address as before."""
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
        """Closes all connections and stops listening."""
        self.answering.set()
        self._server.stop(0).wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _add(self, server: Any) -> None:
        raise NotImplementedError

    def _infer(self, images: Any, context: Any) -> Arrays:
        self.call_metadata.append(dict(context.invocation_metadata()))
        self.batches.append(len(images))
        self.answering.wait(_TIMEOUT_S)
        if float(images.ravel()[0]) == _REFUSED_VALUE:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "this image is refused")
        return self.corrupt(self.network(images))


_TIMEOUT_S = 60.0
_REFUSED_VALUE = 999.0  # The servers refuse an input whose first number is this.


class OpenInferenceServer(Server, triton_apis.GRPCInferenceServiceServicer):  # type: ignore[misc]  # It is untyped.
    """A server of the Open Inference Protocol, with the stubs of Triton's client."""

    form = "open_inference"

    def _add(self, server: Any) -> None:
        triton_apis.add_GRPCInferenceServiceServicer_to_server(self, server)

    def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802 - The protocol's name.
        """Returns the declared tensors."""
        if request.name != MODEL:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{request.name}' is not found")
        response = triton.ModelMetadataResponse(name=MODEL, versions=[self.version], platform="test")
        for name, (shape, dtype) in self.tensors.items():
            part = response.inputs if name == INPUT else response.outputs
            datatype = triton_types.np_to_triton_dtype(np.dtype(dtype))
            part.add(name=name, datatype=datatype, shape=[-1 if side is None else side for side in shape])
        return response

    def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802 - The protocol's name.
        """Runs the model."""
        (tensor,) = request.inputs
        images = np.frombuffer(request.raw_input_contents[0], np.float32).reshape(tuple(tensor.shape))
        response = triton.ModelInferResponse(model_name=MODEL, model_version=self.version)
        arrays = self._infer(images, context)
        for name in (output.name for output in request.outputs if output.name in arrays):
            values = arrays[name]
            response.outputs.add(name=name, datatype=triton_types.np_to_triton_dtype(values.dtype), shape=values.shape)
            response.raw_output_contents.append(values.tobytes())
        return response


class TensorFlowServer(Server, apis.PredictionServiceServicer):  # type: ignore[misc]  # It is untyped.
    """A server of TensorFlow Serving's PredictionService for a SavedModel, with its public stubs."""

    form = "tensorflow_serving"

    def _add(self, server: Any) -> None:
        apis.add_PredictionServiceServicer_to_server(self, server)

    def GetModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802 - The protocol's name.
        """Returns the signatures in the SavedModel's file."""
        if request.model_spec.name != MODEL:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Could not find any versions of model {request.model_spec.name}")
        graph = saved_model.SavedModel.FromString((self.folder / "saved_model.pb").read_bytes()).meta_graphs[0]
        response = metadata.GetModelMetadataResponse()
        response.model_spec.name = MODEL
        response.model_spec.version.value = int(self.version)
        signatures = metadata.SignatureDefMap()
        signatures.signature_def[SIGNATURE].CopyFrom(graph.signature_def[SIGNATURE])
        signature = signatures.signature_def[SIGNATURE]
        for name in self.tensors.keys() - {*signature.inputs, *signature.outputs}:
            signature.outputs[name].dtype = 1
        response.metadata["signature_def"].Pack(signatures)
        return response

    def Predict(self, request: Any, context: Any) -> Any:  # noqa: N802 - The protocol's name.
        """Runs the model."""
        response = predict.PredictResponse()
        response.model_spec.name = MODEL
        response.model_spec.version.value = int(self.version)
        arrays = self._infer(tf.make_ndarray(request.inputs[INPUT]), context)
        for name in request.output_filter:
            if name in arrays:
                response.outputs[name].CopyFrom(_tensor_proto(arrays[name]))
        return response


def _tensor_proto(values: Any) -> Any:
    """Returns a TensorProto as TensorFlow Serving does, with the numbers in the list of their type."""
    proto = tf.make_tensor_proto(values)
    if proto.tensor_content:
        proto.ClearField("tensor_content")
        lists = {"float32": "float_val", "float64": "double_val", "int64": "int64_val"}
        getattr(proto, lists.get(values.dtype.name, "int_val")).extend(values.ravel().tolist())
    return proto


SERVERS = {server.form: server for server in (OpenInferenceServer, TensorFlowServer)}


def serve(root: Path, task: str, form: str, folder: Path) -> Server:
    """Serves the Keras model that `tiny_models.write` wrote to `root`, through a SavedModel in `folder`."""
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

    tensors = {INPUT: ((None, HEIGHT, WIDTH, 3), "float32")}
    for name, spec in signature.structured_outputs.items():
        tensors[name] = (tuple(spec.shape), spec.dtype.as_numpy_dtype)
    return SERVERS[form](infer, tensors, folder)


def write_manifest(  # noqa: PLR0917
    root: Path, task: str, form: str, address: str, name: str, remote: Mapping[str, Any] | None = None, **changes: Any
) -> Path:
    """Writes the manifest of a model of `task` that is served at `address`; returns its folder.

    `remote` and `changes` replace keys of the remote section and of the manifest.
    """
    manifest = yaml.safe_load((root / task / "model.yaml").read_text())
    for key in ("file", "sha256", "name"):
        manifest.pop(key, None)
    manifest |= {"format": form, "remote": {"address": address, "model": MODEL, **(remote or {})}, **changes}
    folder = root / name
    folder.mkdir()
    (folder / "model.yaml").write_text(yaml.safe_dump(manifest))
    return folder


def when_available(call: Callable[[], T]) -> T:
    """Repeats a call until the model's channel has reconnected; returns its result, and raises any other failure."""
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            return call()
        except ModelUnavailableError as error:
            if "load it again" in str(error) or time.monotonic() > deadline:
                raise
