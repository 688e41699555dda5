"""TODO docstring of bench/link."""
