"""Predictions beside measurements: scoreboards of kernels, collectives and runs."""
