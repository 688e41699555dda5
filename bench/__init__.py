"""Studies: load, links, baselines, statistics and reports."""
