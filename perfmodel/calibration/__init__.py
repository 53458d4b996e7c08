"""Fitting constants to tables of measurements."""
