"""Scenario in, answer out."""
