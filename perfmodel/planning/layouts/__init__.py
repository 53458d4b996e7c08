"""Layouts: which parallel layouts there are for a Transformer, and the fastest that fits."""
