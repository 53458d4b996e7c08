"""Stacks: what a framework fuses, overlaps, captures and launches, as data."""
