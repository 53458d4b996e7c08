"""The executor on Ray; its module `cluster` is the only one that imports Ray."""
