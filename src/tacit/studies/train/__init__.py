"""Training a fleet: which runs share one, the program that updates them, examples, checkpoints."""
