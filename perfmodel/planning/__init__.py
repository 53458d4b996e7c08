"""Planning: which sharding plan is fastest, and how sure we are."""
