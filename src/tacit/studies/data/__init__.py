"""Datasets: what is known about each, where its files are, how they are read, checked, fetched and augmented."""
