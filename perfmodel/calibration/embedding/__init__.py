"""Fitting embedding kernels to measured ones."""
