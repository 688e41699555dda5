"""Everything that the synthetic drive shows: street, buildings, plants, vehicles, people."""
