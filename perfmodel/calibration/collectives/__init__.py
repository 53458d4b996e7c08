"""Fitting collectives to measured ones."""
