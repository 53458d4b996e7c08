"""Costs of attention: fused kernels by name, or unfused."""
