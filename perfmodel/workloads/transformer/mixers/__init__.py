"""What mixes the tokens of a sequence: one module per way, and the table of all."""
