"""Calibration: constants fitted to measured tables, and how well they hold on rows not fitted."""
