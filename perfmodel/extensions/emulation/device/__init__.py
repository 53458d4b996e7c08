"""The virtual CUDA device: everything here runs in the process of the script, and imports torch."""
