"""Words typed by a person."""
