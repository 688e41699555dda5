"""The servers as their own documentation builds them; each runs in its peer's environment, not in Skylane's."""
