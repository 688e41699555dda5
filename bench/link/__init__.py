"""A link of known faults between vehicle and broker."""
