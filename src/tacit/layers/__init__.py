"""How layers give a gradient and its norm by their rows: below penalties and diagnostics."""
