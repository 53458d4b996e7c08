"""Measurements: constants fitted to them, and scores of predictions against them."""
