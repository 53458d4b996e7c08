"""How a topology is shown."""
