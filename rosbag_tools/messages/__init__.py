"""ROS messages in bags: images, boxes, and message definitions."""
