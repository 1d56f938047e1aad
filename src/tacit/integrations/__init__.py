"""Adapters for other people's trainers; users import them from `tacit.lightning` and `tacit.transformers`."""
