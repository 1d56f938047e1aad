"""Private helpers of every room: they import nothing of the package but each other."""
