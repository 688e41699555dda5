"""The cloud node, a worker: frames in, masks out."""
