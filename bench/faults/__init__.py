"""The fault bench: every fault that Skylane promises to survive, done for real to real processes."""
