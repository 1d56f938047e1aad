"""Where fleets run: in processes of this machine, or in workers of a Ray cluster."""
