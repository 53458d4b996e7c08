"""Costs: how long an op takes on a device, how sure we are, and how we know."""
