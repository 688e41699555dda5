"""`python -m training`, in a checkout of the repository."""

from skylane.cli import main
from training.cli import train

main(program=train, title="python -m training")
