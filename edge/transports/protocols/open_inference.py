"""The Open Inference Protocol, version 2: a frame as an inference of one string, over gRPC or REST with binary tensors."""

import json
import struct
from functools import partial

from edge.transports.channel import Returned
from edge.transports.frame_metadata import FRAME_HEADER, FRAME_KEY, IMAGE, RESULT, frame_beside, frame_header, mask_of
from edge.transports.transport import EncodedRequest
from shared.encoding.bounded_json import parse
from shared.encoding.bounded_protobuf import ProtobufError
from shared.encoding.bounded_protobuf import parse as parse_message
from shared.encoding.compression import Buffer
from shared.encoding.msgpack_reader import MessageError
from shared.encoding.protobuf import message_class
from shared.messages.frame import FrameMessage, ResultMessage

MAX_VALUES = 256  # Of the JSON before an answer's one string.
LENGTH_HEADER = "Inference-Header-Content-Length"

_LENGTH = struct.Struct("<I")  # Before each string.


class OipGrpcAdapter:
    """`inference.GRPCInferenceService.ModelInfer`."""

    method = "/inference.GRPCInferenceService/ModelInfer"

    def pack(self, message: FrameMessage) -> EncodedRequest:
        """See Dialect."""
        request = message_class("inference.ModelInferRequest")(
            model_name=message.model,
            inputs=[{"name": IMAGE, "datatype": "BYTES", "shape": [1]}],
            outputs=[{"name": RESULT}],
            raw_input_contents=[_LENGTH.pack(len(message.data)) + message.data],
        )
        return EncodedRequest((request.SerializeToString(),), ((FRAME_KEY, frame_beside(message)),))

    def read(self, returned: Returned) -> ResultMessage:
        """See Dialect."""
        return mask_of(returned.beside, partial(_raw, returned.body))


class OipRestAdapter:
    """`POST /v2/models/M/infer` with the binary tensor extension, both ways."""

    content_type = "application/octet-stream"

    def __init__(self, model: str) -> None:
        self.path = f"/v2/models/{model}/infer"

    def pack(self, message: FrameMessage) -> EncodedRequest:
        """See Dialect. The picture is copied once, into its place."""
        size = len(message.data)
        parameters = {"binary_data_size": _LENGTH.size + size}
        tensor = {"name": IMAGE, "shape": [1], "datatype": "BYTES", "parameters": parameters}
        outputs = [{"name": RESULT, "parameters": {"binary_data": True}}]
        header = json.dumps({"inputs": [tensor], "outputs": outputs}).encode()
        beside = ((FRAME_HEADER, frame_header(message)), (LENGTH_HEADER, str(len(header))))
        return EncodedRequest((b"".join((header, _LENGTH.pack(size), message.data)),), beside)

    def read(self, returned: Returned) -> ResultMessage:
        """See Dialect."""
        return mask_of(returned.beside, partial(_binary, returned.body, returned.beside.get(LENGTH_HEADER, "")))


def _raw(body: Buffer) -> Buffer | None:
    """The one result of a ModelInferResponse."""
    try:
        raw = parse_message(message_class("inference.ModelInferResponse"), body).raw_output_contents
    except ProtobufError as error:
        raise MessageError(f"no ModelInferResponse: {error}") from error
    return _string(memoryview(raw[0])) if len(raw) == 1 else None


def _binary(body: Buffer, header_bytes: str | bytes) -> Buffer | None:
    """The one result of an answer with binary tensors. `header_bytes`: as the header says how long the JSON is."""
    try:
        length = int(header_bytes)
        outputs = parse(body[:length], MAX_VALUES, is_ascii=True)["outputs"]
        sizes = [output["parameters"]["binary_data_size"] for output in outputs]
    except (ValueError, TypeError, LookupError) as error:
        raise MessageError(f"no answer with binary tensors: {type(error).__name__} {error}"[:200]) from error
    raw = memoryview(body)[length:]
    return _string(raw) if sizes == [len(raw)] else None


def _string(raw: memoryview) -> memoryview | None:
    """The one string of a tensor of strings, without a copy; None where it is none."""
    is_one = len(raw) >= _LENGTH.size and _LENGTH.unpack_from(raw)[0] == len(raw) - _LENGTH.size
    return raw[_LENGTH.size :] if is_one else None
