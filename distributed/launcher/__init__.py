"""What `bert-launch` is made of: hosts, the mpirun command, one job and what it prints, restarts."""
