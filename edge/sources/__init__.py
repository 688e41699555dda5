"""Where frames come from: one file a kind of source."""
