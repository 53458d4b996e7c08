"""Costs of memory-bound kernels."""
