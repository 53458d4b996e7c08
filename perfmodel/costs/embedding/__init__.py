"""Costs of embedding lookups and their updates."""
