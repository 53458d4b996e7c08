"""Operators: what a call of a torch operator costs, for recordings and emulated scripts."""
