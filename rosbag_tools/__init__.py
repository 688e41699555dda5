"""Bags in and out without ROS, and the synthetic drive."""
