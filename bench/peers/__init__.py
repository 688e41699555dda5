"""Other serving systems, each serving the same TensorFlow function as Skylane, and the load that compares them."""
