"""Fitting how much kernels slow down beside collectives."""
