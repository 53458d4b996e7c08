"""Experts: grouped products, and the whole layer that public tables measure."""
