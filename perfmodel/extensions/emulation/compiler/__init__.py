"""The compiler of torch on the virtual device: what `torch.compile` makes of a script."""
