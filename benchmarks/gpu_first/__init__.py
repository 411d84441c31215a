"""What to measure first on a new GPU machine, which may have no network. `--help` lists the commands."""
