"""`perfmodel validate` and `perfmodel calibrate`."""
