"""Tables of measured kernels, read as ops with the time the hardware took."""
