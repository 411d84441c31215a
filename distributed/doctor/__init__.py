"""Checks of a machine or a cluster, on all ranks together: software, hosts, devices, disks, networks, sums."""
