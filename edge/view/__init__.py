"""The live view: shows a run in Rerun or Foxglove while it goes on, from a process of its own.

Start with `live_view`, which the vehicle node uses; `view_process` is the other side.
"""
