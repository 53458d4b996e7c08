"""perfmodel: predicts the time of a training iteration on GPUs you do not have."""

__version__ = "1.0.0"
