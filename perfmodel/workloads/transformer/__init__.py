"""Transformers: specification, parallel layout, memory, and the job of one iteration."""
