"""`python -m tacit`: the command line, for environments whose scripts are not on the path."""

from tacit.cli import main

main()
