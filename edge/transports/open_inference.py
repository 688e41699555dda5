"""The Open Inference Protocol, version 2: each frame is an inference call whose input is one string tensor."""

import json
import struct
from functools import partial

from edge.transports import channel
from edge.transports.channel import RpcReply
from edge.transports.transport import EncodedRequest
from shared.compression import Buffer
from shared.messages.frame import FrameMessage, ResultMessage
from shared.messages.msgpack_reader import MessageError
from shared.messages.protobuf import ProtobufError, message_class, parse

MAX_VALUES = 256  # JSON values in the header of a binary reply.
LENGTH_HEADER = "Inference-Header-Content-Length"

_LENGTH = struct.Struct("<I")  # Precedes each string of a string tensor.


class OipGrpcAdapter:
    """Encodes frames for `inference.GRPCInferenceService.ModelInfer`."""

    method = "/inference.GRPCInferenceService/ModelInfer"

    def pack(self, message: FrameMessage) -> EncodedRequest:
        """See ProtocolAdapter."""
        request = message_class("inference.ModelInferRequest")(
            model_name=message.model,
            inputs=[{"name": channel.IMAGE, "datatype": "BYTES", "shape": [1]}],
            outputs=[{"name": channel.RESULT}],
            raw_input_contents=[_LENGTH.pack(len(message.data)) + message.data],
        )
        return EncodedRequest(request.SerializeToString(), ((channel.FRAME_KEY, channel.pack_metadata(message)),))

    def read(self, reply: RpcReply) -> ResultMessage:
        """See ProtocolAdapter."""
        return channel.read_mask(reply.metadata, partial(_result_of_message, reply.body))


class OipRestAdapter:
    """Encodes frames for `POST /v2/models/<model>/infer` with the binary tensor extension in both directions."""

    content_type = "application/octet-stream"

    def __init__(self, model: str) -> None:
        self.path = f"/v2/models/{model}/infer"

    def pack(self, message: FrameMessage) -> EncodedRequest:
        """See ProtocolAdapter. Copies the image once."""
        size = len(message.data)
        parameters = {"binary_data_size": _LENGTH.size + size}
        tensor = {"name": channel.IMAGE, "shape": [1], "datatype": "BYTES", "parameters": parameters}
        outputs = [{"name": channel.RESULT, "parameters": {"binary_data": True}}]
        header = json.dumps({"inputs": [tensor], "outputs": outputs}).encode()
        metadata = (
            (channel.FRAME_HEADER, channel.pack_header(message)),
            (LENGTH_HEADER, str(len(header))),
        )
        return EncodedRequest(b"".join((header, _LENGTH.pack(size), message.data)), metadata)

    def read(self, reply: RpcReply) -> ResultMessage:
        """See ProtocolAdapter."""
        return channel.read_mask(
            reply.metadata, partial(_result_of_binary, reply.body, reply.metadata.get(LENGTH_HEADER, ""))
        )


def _result_of_message(body: Buffer) -> Buffer | None:
    """Returns the result in a serialized ModelInferResponse."""
    try:
        raw = parse(message_class("inference.ModelInferResponse"), body).raw_output_contents
    except ProtobufError as error:
        raise MessageError(f"no ModelInferResponse: {error}") from error
    return _only_string(memoryview(raw[0])) if len(raw) == 1 else None


def _result_of_binary(body: Buffer, header_length: str | bytes) -> Buffer | None:
    """Returns the result in a reply with binary tensors. `header_length`: size of the JSON at its start, in bytes."""
    try:
        length = int(header_length)
        outputs = channel.parse_json(body[:length], MAX_VALUES)["outputs"]
        sizes = [output["parameters"]["binary_data_size"] for output in outputs]
    except (ValueError, TypeError, LookupError) as error:
        raise MessageError(f"no reply with binary tensors: {type(error).__name__} {error}"[:200]) from error
    raw = memoryview(body)[length:]
    return _only_string(raw) if sizes == [len(raw)] else None


def _only_string(raw: memoryview) -> memoryview | None:
    """Returns the string of a one-element string tensor without copying it, or None if the tensor is malformed."""
    is_one = len(raw) >= _LENGTH.size and _LENGTH.unpack_from(raw)[0] == len(raw) - _LENGTH.size
    return raw[_LENGTH.size :] if is_one else None
