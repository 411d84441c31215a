#!/usr/bin/env bash
# Sets everything up in .venv and runs the default tests. Arguments are passed to pytest (scripts/test.sh -k plan).
#
#   scripts/test.sh --changed    installs nothing: runs the tests of what differs from the main branch, the nearest
#                                first, by the environment that is active, or .venv. Stops after two minutes, and
#                                says what did not run. Arguments of pytest may follow (-m slow, --seconds 600).
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  sed -n '2,6s/^# \{0,1\}//p' "$0"
  exit
fi
workers=$(nproc)
options=(-n $((workers > 4 ? 4 : workers)) --dist loadfile)
chosen=() mode=
if [[ ${1:-} == --changed ]]; then
  shift
  mode="--changed "
  [[ -n ${VIRTUAL_ENV:-} ]] || PATH=$PWD/${RINGBERT_VENV:-.venv}/bin:$PATH
  found='import sys; from importlib.util import find_spec; sys.exit(not all(map(find_spec, sys.argv[1:])))'
  python -c "$found" keras tensorflow pytest pytest_timeout xdist ||
    { echo "error: no environment for tests is active: scripts/test.sh makes one in .venv" >&2; exit 1; }
  mapfile -t chosen < <(python scripts/changed_tests.py)
  if ((${#chosen[@]} == 0)); then
    echo "nothing differs from the main branch that a test looks at"
    exit
  fi
  options+=(--no-loadscope-reorder --seconds 120)
else
  make_environment cpu,mpi,dev
fi
echo "+ python -m pytest ${options[*]} ${chosen[*]} $*"
status=0
python -m pytest "${options[@]}" "${chosen[@]}" "$@" || status=$?
# 5: no test was chosen
if ((status == 5)) && python -m pytest -m slow --collect-only -q "${chosen[@]}" "$@" > /dev/null 2>&1; then
  echo "the tests that this chooses are slow, so add -m slow: scripts/test.sh $mode-m slow $*"
fi
exit $status
