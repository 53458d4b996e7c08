"""Emulation: unmodified PyTorch training scripts on virtual GPUs become job graphs."""
