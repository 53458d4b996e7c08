"""Embedding tables, how their rows are looked up, and how they are sharded over ranks."""
