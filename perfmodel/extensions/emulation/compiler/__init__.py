"""The compiler of torch on the virtual driver: what `torch.compile` makes of a script."""
