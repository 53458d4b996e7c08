"""Devices for tests, each read once."""

from functools import cache

import topologies

load_device = cache(topologies.load_device)
