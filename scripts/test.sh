#!/usr/bin/env bash
# Sets everything up in .venv and runs the default tests. Arguments are passed to pytest (scripts/test.sh -k plan).
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
make_environment cpu,mpi,dev
workers=$(nproc)
((workers > 4)) && workers=4
echo "+ python -m pytest -n $workers --dist loadfile $*"
python -m pytest -n "$workers" --dist loadfile "$@"
