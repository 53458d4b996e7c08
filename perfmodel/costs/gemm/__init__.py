"""Costs of matrix products."""
