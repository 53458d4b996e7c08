"""perfmodel: predicts the time of a training iteration on GPUs you do not have."""

__version__ = "0.2.0"
