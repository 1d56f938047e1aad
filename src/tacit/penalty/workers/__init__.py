"""Several workers: DistributedDataParallel, shards, and what workers compare."""
