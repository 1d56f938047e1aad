"""Fleets on a Ray cluster."""
