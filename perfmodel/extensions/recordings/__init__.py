"""Recordings: traces of real jobs become job graphs that can be replayed and changed."""
