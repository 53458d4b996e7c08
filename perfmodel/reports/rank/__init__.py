"""How a ranking is shown."""
