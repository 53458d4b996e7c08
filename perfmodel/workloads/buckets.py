"""Buckets: gradients gathered until enough of them are worth one collective.

As in PyTorch's DistributedDataParallel a bucket is closed by the gradient
that makes it reach its limit, the first limit is smaller so that communication
starts early, and gradients arrive in the order the backward pass makes them.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_BUCKET_BYTES = 2**20


@dataclass(slots=True)
class BucketFill:
    """The bucket being filled, and how many were closed before it."""

    limit_bytes: int
    closed: int = 0
    filled_bytes: int = 0

    def add(self, gradient_bytes: int) -> int:
        """Add a gradient; bytes of the bucket that this closes, or 0."""
        self.filled_bytes += gradient_bytes
        limit_bytes = self.limit_bytes
        if self.closed == 0:
            limit_bytes = min(limit_bytes, FIRST_BUCKET_BYTES)
        return self.close() if self.filled_bytes >= limit_bytes else 0

    def close(self) -> int:
        """Close the bucket as it is; its bytes, or 0 if it is empty."""
        size_bytes, self.filled_bytes = self.filled_bytes, 0
        self.closed += 1 if size_bytes else 0
        return size_bytes
