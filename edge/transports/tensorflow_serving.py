"""TensorFlow Serving's protocols: a frame as a Predict call of the signature `packed`, over gRPC or REST."""

import base64
import binascii
from functools import partial

from edge.transports.beside import FRAME_HEADER, FRAME_KEY, IMAGE, RESULT, frame_beside, frame_header, mask_of
from edge.transports.line import Returned
from edge.transports.transport import Parcel
from shared.compression import Buffer
from shared.fields import MessageError
from shared.foreign_json import parse
from shared.large_fields import FieldsError, head, split
from shared.messages import FrameMessage, MaskMessage

MAX_VALUES = 64  # Of an answer in JSON, which has one string.

_SIGNATURE = "packed"
_STRING_VECTOR = b"\x08\x07\x12\x04\x12\x02\x08\x01"  # TensorProto: dtype DT_STRING, tensor_shape of one dim of 1.
_MODEL_SPEC, _INPUTS = 1, 2  # Fields of PredictRequest,
_NAME, _SIGNATURE_NAME = 1, 3  # of ModelSpec,
_KEY, _VALUE = 1, 2  # of an entry of a map,
_STRING_VAL = 8  # of TensorProto
_OUTPUTS = 1  # and of PredictResponse.


class GrpcPredict:
    """`tensorflow.serving.PredictionService.Predict`."""

    method = "/tensorflow.serving.PredictionService/Predict"

    def pack(self, message: FrameMessage) -> Parcel:
        """See Dialect."""
        spec = _field(_NAME, message.model.encode()) + _field(_SIGNATURE_NAME, _SIGNATURE.encode())
        size = len(message.data)
        tensor = _STRING_VECTOR + head(_STRING_VAL, size)
        entry = _field(_KEY, IMAGE.encode()) + head(_VALUE, len(tensor) + size) + tensor
        before = _field(_MODEL_SPEC, spec) + head(_INPUTS, len(entry) + size) + entry
        return Parcel((before, message.data), ((FRAME_KEY, frame_beside(message)),))

    def read(self, returned: Returned) -> MaskMessage:
        """See Dialect."""
        try:
            return mask_of(returned.beside, partial(_output, returned.body))
        except FieldsError as error:
            raise MessageError(f"no PredictResponse: {error}") from error


class RestPredict:
    """`POST /v1/models/M:predict` in the row format, pictures and results in base64."""

    content_type = "application/json"

    def __init__(self, model: str) -> None:
        self.path = f"/v1/models/{model}:predict"

    def pack(self, message: FrameMessage) -> Parcel:
        """See Dialect."""
        before = b'{"signature_name":"%s","instances":[{"b64":"' % _SIGNATURE.encode()
        body = b"".join((before, base64.b64encode(message.data), b'"}]}'))
        return Parcel((body,), ((FRAME_HEADER, frame_header(message)),))

    def read(self, returned: Returned) -> MaskMessage:
        """See Dialect."""
        return mask_of(returned.beside, partial(_prediction, returned.body))


def _field(number: int, value: bytes) -> bytes:
    return head(number, len(value)) + value


def _output(body: Buffer) -> Buffer | None:
    """The one result of a PredictResponse, without a copy; None where it has none."""
    for entry in split(body, _OUTPUTS)[1]:
        others, values = split(entry, _VALUE)
        if split(others, _KEY)[1] == [RESULT.encode()] and values:
            strings = split(values[-1], _STRING_VAL)[1]
            return strings[0] if len(strings) == 1 else None
    return None


def _prediction(body: Buffer) -> Buffer | None:
    """The one result of an answer in the row format; None where it has none."""
    try:
        predictions = parse(body, MAX_VALUES, is_ascii=True)["predictions"]
        return base64.b64decode(predictions[0]["b64"], validate=True) if predictions else None
    except (ValueError, TypeError, LookupError, binascii.Error) as error:
        raise MessageError(f"no answer to a predict call: {type(error).__name__} {error}"[:200]) from error
