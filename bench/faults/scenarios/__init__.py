"""The fault scenarios, grouped by the part that fails."""
