"""Pages of README and manual: what they tell a reader to do, done in a folder."""
