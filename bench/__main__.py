"""`python -m bench`, in a checkout of the repository."""

from bench.cli import bench
from skylane.cli import main

main(program=bench, title="python -m bench")
