"""Rosbags without ROS: reading, writing, inspecting, repairing, and rendering a synthetic drive.

Start with `reading.bag`, `writer` and `drive.recording`.
"""
