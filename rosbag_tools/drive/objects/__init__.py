"""Everything that the synthetic drive shows: ground, buildings, plants, vehicles, people."""
