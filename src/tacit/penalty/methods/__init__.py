"""Ways to differentiate the penalised objective, one file each, and what they share."""
