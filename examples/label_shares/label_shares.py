"""Prints the mean share of each label for every bag of a batch: `python label_shares.py OUT`, after `skylane batch`."""

import sys
from pathlib import Path

import pandas as pd

frames = pd.read_parquet(Path(sys.argv[1]) / "frames.parquet")
shares = [column for column in frames.columns if column.startswith("share_")]
mean = frames.groupby("bag")[shares].mean().rename(columns=lambda name: name.removeprefix("share_"))
common = mean.mean().nlargest(6).index  # The labels that cover most of the pixels.
table = (100 * mean[common]).round(1).add_suffix(" %")
table.insert(0, "frames", frames.groupby("bag").size())
print(table.to_string())
