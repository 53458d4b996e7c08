"""The virtual CUDA driver: an unmodified CUDA build of torch, of the user's own environment."""
