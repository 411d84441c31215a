#!/usr/bin/env bash
# Sets everything up in .venv and runs the default tests. Arguments are passed to pytest (scripts/test.sh -k plan).
#
#   scripts/test.sh --changed    installs nothing: runs the test folders of what differs from the main branch, by the
#                                environment that is active, or .venv. Arguments of pytest may follow (-m slow).
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh

# The folders of tests that look at a file of the project.
tests_of() {
  case $1 in
    tests/soak/*) ;;
    tests/*/test_*.py) [[ ! -f $1 ]] || echo "$1" ;;
    tests/spmd/* | tests/jobs/*) dirname "$1" | cut -d/ -f1-2 ;;
    tests/*) echo tests ;;
    bert/corpus/* | tasks/corpus/*) echo tests/files ;;
    bert/text/*) echo tests/input ;;
    bert/*) echo tests/referee tests/files tests/spmd ;;
    distributed/*) echo tests/files tests/spmd tests/jobs ;;
    ringbert/horovod/* | examples/*.py) echo tests/horovod tests/spmd ;;
    ringbase/* | tasks/* | ringbert/*) echo tests/files tests/flags tests/input tests/programs ;;
    benchmarks/* | configs/*) echo tests/flags tests/package ;;
    *) echo tests/package ;;
  esac
}

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  sed -n '2,5s/^# \{0,1\}//p' "$0"
  exit
fi
chosen=() mode=
if [[ ${1:-} == --changed ]]; then
  shift
  mode="--changed "
  [[ -n ${VIRTUAL_ENV:-} ]] || PATH=$PWD/${RINGBERT_VENV:-.venv}/bin:$PATH
  python -c 'import keras, pytest, pytest_timeout, xdist' ||
    { echo "error: no environment for tests is active: scripts/test.sh makes one in .venv" >&2; exit 1; }
  base=$(git merge-base HEAD origin/HEAD 2> /dev/null || git merge-base HEAD main 2> /dev/null || echo HEAD)
  while read -r file; do
    read -ra folders <<< "$(tests_of "$file")"
    chosen+=("${folders[@]}")
  done < <(git diff --name-only "$base" && git ls-files --others --exclude-standard)
  if ((${#chosen[@]} == 0)); then
    echo "nothing differs from $(git log -1 --format='%h, %s' "$base")"
    exit
  fi
  mapfile -t chosen < <(printf '%s\n' "${chosen[@]}" | sort -u)
else
  make_environment cpu,mpi,dev
fi
workers=$(nproc)
((workers > 4)) && workers=4
echo "+ python -m pytest -n $workers --dist loadfile ${chosen[*]} $*"
status=0
python -m pytest -n "$workers" --dist loadfile "${chosen[@]}" "$@" || status=$?
# 5: no test was chosen
if ((status == 5)) && python -m pytest -m slow --collect-only -q "${chosen[@]}" "$@" > /dev/null 2>&1; then
  echo "the tests that this chooses are slow, so add -m slow: scripts/test.sh $mode-m slow $*"
fi
exit $status
