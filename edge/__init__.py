"""The vehicle node: replays a source, sends frames to workers, and logs the latency of every stage of every frame.

Start with `node`, which connects sources, pipeline, transport and sinks.
"""
