"""TensorFlow and Keras, kept as quiet as the engines keep TensorFlow."""

from importlib import import_module
from typing import Any

from cloud.engines.tensorflow.library import tf

# Imported here and after it only: Keras imports TensorFlow, and whoever is first decides how much it tells.
keras: Any = import_module("keras")

__all__ = ["keras", "tf"]
