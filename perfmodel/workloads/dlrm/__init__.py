"""Recommendation models: specification, exchanges, memory, and the job of one iteration."""
