"""The job graph: what must run, where, after what."""
