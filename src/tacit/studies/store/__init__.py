"""The folder of results: rows, checkpoints, their one writer, and how far a study is."""
