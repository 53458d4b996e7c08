"""Predictions compared with measurements: scoreboards of kernels, collectives and runs."""
