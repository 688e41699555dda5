"""How a frame reaches a worker: one file a transport."""
