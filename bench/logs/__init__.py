"""The files that runs leave: read, and held against what they promise."""
