"""The Open Inference Protocol, version 2: a frame as an inference of one string, over gRPC or REST with binary tensors."""

import json
import struct
from functools import partial

from edge.transports.beside import FRAME_HEADER, FRAME_KEY, IMAGE, RESULT, frame_beside, frame_header, mask_of
from edge.transports.line import Returned
from edge.transports.transport import Parcel
from shared.compression import Buffer
from shared.fields import MessageError
from shared.foreign_json import parse
from shared.large_fields import FieldsError, head, split
from shared.messages import FrameMessage, MaskMessage

MAX_VALUES = 256  # Of the JSON before an answer's one string.
LENGTH_HEADER = "Inference-Header-Content-Length"

_LENGTH = struct.Struct("<I")  # Before each string.
_MODEL_NAME, _INPUTS, _OUTPUTS, _RAW_INPUTS = 1, 5, 6, 7  # Fields of ModelInferRequest,
_NAME, _DATATYPE, _SHAPE = 1, 2, 3  # of its tensors
_RAW_OUTPUTS = 6  # and of ModelInferResponse.


class GrpcInfer:
    """`inference.GRPCInferenceService.ModelInfer`."""

    method = "/inference.GRPCInferenceService/ModelInfer"

    def pack(self, message: FrameMessage) -> Parcel:
        """See Dialect."""
        tensor = _field(_NAME, IMAGE.encode()) + _field(_DATATYPE, b"BYTES") + _field(_SHAPE, b"\x01")
        size = len(message.data)
        before = (
            _field(_MODEL_NAME, message.model.encode())
            + _field(_INPUTS, tensor)
            + _field(_OUTPUTS, _field(_NAME, RESULT.encode()))
            + head(_RAW_INPUTS, _LENGTH.size + size)
            + _LENGTH.pack(size)
        )
        return Parcel((before, message.data), ((FRAME_KEY, frame_beside(message)),))

    def read(self, returned: Returned) -> MaskMessage:
        """See Dialect."""
        return mask_of(returned.beside, partial(_raw, returned.body))


class RestInfer:
    """`POST /v2/models/M/infer` with the binary tensor extension, both ways."""

    content_type = "application/octet-stream"

    def __init__(self, model: str) -> None:
        self.path = f"/v2/models/{model}/infer"

    def pack(self, message: FrameMessage) -> Parcel:
        """See Dialect. The picture is copied once, into its place."""
        size = len(message.data)
        parameters = {"binary_data_size": _LENGTH.size + size}
        tensor = {"name": IMAGE, "shape": [1], "datatype": "BYTES", "parameters": parameters}
        outputs = [{"name": RESULT, "parameters": {"binary_data": True}}]
        header = json.dumps({"inputs": [tensor], "outputs": outputs}).encode()
        beside = ((FRAME_HEADER, frame_header(message)), (LENGTH_HEADER, str(len(header))))
        return Parcel((b"".join((header, _LENGTH.pack(size), message.data)),), beside)

    def read(self, returned: Returned) -> MaskMessage:
        """See Dialect."""
        return mask_of(returned.beside, partial(_binary, returned.body, returned.beside.get(LENGTH_HEADER, "")))


def _field(number: int, value: bytes) -> bytes:
    return head(number, len(value)) + value


def _raw(body: Buffer) -> Buffer | None:
    """The one result of a ModelInferResponse."""
    try:
        raw = split(body, _RAW_OUTPUTS)[1]
    except FieldsError as error:
        raise MessageError(f"no ModelInferResponse: {error}") from error
    return _string(raw[0]) if len(raw) == 1 else None


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
