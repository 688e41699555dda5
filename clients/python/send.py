"""The mask of a picture: python send.py HOST:PORT MODEL PICTURE MASK.png, with tritonclient[grpc] and OpenCV."""

import sys
from pathlib import Path

import cv2
import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

address, model, picture, mask = sys.argv[1:]
image = InferInput("image_bytes", [1], "BYTES")
image.set_data_from_numpy(np.array([Path(picture).read_bytes()], object))
try:
    answer = InferenceServerClient(address).infer(model, [image], outputs=[InferRequestedOutput("mask")])
except InferenceServerException as error:
    sys.exit(str(error))  # What the worker says: not served, no picture, too many frames waiting.
cv2.imwrite(mask, answer.as_numpy("mask")[0])  # The class id of every pixel, of the model's size.
