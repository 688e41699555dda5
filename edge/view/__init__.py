"""The live view: shows a run in Rerun or Foxglove while it is in progress, from a separate process.

Start with `live_view`, which the vehicle node uses; `view_process` is the separate process.
"""
