"""Studies: a matrix of cells, each run several times in random order, into one tidy table."""
