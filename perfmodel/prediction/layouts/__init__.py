"""Layouts: which ones a job could run in, how fast each can be at best, and the one it gets."""
