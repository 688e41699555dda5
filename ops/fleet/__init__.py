"""The fleet at a broker, as its nodes report it: `skylane status` and `skylane top`."""
