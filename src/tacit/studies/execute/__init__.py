"""Where fleets run: processes of this machine, workers of a Ray cluster, SLURM jobs."""
