"""Sending a folder of pictures to workers, spread over them by load."""
