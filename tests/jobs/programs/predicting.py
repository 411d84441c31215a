"""Predicts in every process of an MPI job, without joining the job. Each process prints its line of JSON."""

import json
import os
import sys

import ringbert

heavy = {"tensorflow", "keras", "mpi4py", "transformers", "numpy"} & sys.modules.keys()
vectors = ringbert.Features(sys.argv[1]).pooled(["the red fox", "two dull axe"])
found = {
    "rank": os.environ["OMPI_COMM_WORLD_RANK"],
    "loaded by import ringbert": sorted(heavy),
    "joined": "mpi4py.MPI" in sys.modules,
    "sums": vectors.sum(1).tolist(),
}
print(json.dumps(found))
