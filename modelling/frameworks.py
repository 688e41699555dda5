"""TensorFlow and the Keras on it, kept as quiet as the engines keep them."""

from typing import Any

from cloud.engines.tensorflow_device import tf

keras: Any = tf.keras  # By this road, so that nothing imports Keras, which imports TensorFlow, before it is quiet.

__all__ = ["keras", "tf"]
