"""What a group of ranks does together: collectives, and how long they take on a cluster."""
