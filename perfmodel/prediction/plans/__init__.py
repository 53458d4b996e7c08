"""Plans: the times of thousands of sharding plans of one workload on one cluster."""
