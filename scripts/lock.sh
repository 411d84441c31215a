#!/usr/bin/env bash
# Writes the lock files in requirements/ anew after a change of pyproject.toml: every package that an environment
# needs, at one version, with the digests of its files. They are for Linux on x86-64 and Python 3.11 to 3.13. Needs
# uv and a network. Versions stay as they are while they fit; `scripts/lock.sh --upgrade` takes the newest.
set -euo pipefail
cd "$(dirname "$0")/.."

lock() { # file, extras, further options; with what builds ringbert itself
  local file=requirements/$1.txt extras=()
  for extra in ${2//,/ }; do extras+=(--extra "$extra"); done
  python3 -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"])' |
    uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
      --custom-compile-command scripts/lock.sh "${extras[@]}" "${@:3}" --output-file "$file" pyproject.toml -
}

lock cpu-mpi cpu,mpi "$@"
# What tests need besides, with the same versions of what both need.
base=requirements/cpu-mpi.txt
mapfile -t without < <(sed -nE 's/^([a-z0-9-]+)==.*/--no-emit-package=\1/p' "$base" | sort -u)
lock cpu-mpi-dev cpu,mpi,dev --constraint "$base" "${without[@]}" "$@"
sed -i "0,/^[a-z]/s//-r cpu-mpi.txt\n&/" requirements/cpu-mpi-dev.txt
for file in requirements/*.txt; do echo "$file: $(grep -c == "$file") packages"; done
