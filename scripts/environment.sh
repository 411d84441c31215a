# Sourced by the other scripts: makes .venv in the project's folder, with ringbert and the extras named in $1,
# unless it exists already. RINGBERT_VENV sets another folder. Needs bash, python3 (>= 3.11) and a package index.
make_environment() {
  local extras=$1 venv=${RINGBERT_VENV:-.venv} lock=requirements/${1//,/-}.txt wanted pip
  wanted="$(cat pyproject.toml requirements/*.txt | cksum) $(pwd)"
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { echo "error: $(python3 --version) is too old: ringbert needs Python 3.11 or newer" >&2; return 1; }
  if ! "$venv/bin/python" -m pip --version > /dev/null 2>&1; then
    echo "+ python3 -m venv $venv"
    python3 -m venv "$venv"
  fi
  if [[ $(cat "$venv/.ringbert-$extras" 2>/dev/null) != "$wanted" ]]; then
    pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
    if is_locked "$venv/bin/python" "$lock"; then
      echo "+ $venv/bin/pip install --require-hashes -r $lock    # silent for a minute or two"
      "${pip[@]}" --require-hashes -r "$lock"
      echo "+ $venv/bin/pip install --no-deps --no-build-isolation -e ."
      "${pip[@]}" --no-deps --no-build-isolation -e .
    else
      echo "+ $venv/bin/pip install -e '.[$extras]'    # no lock file fits; silent for a minute or two"
      "${pip[@]}" -e ".[$extras]"
    fi
    echo "$wanted" > "$venv/.ringbert-$extras"
  fi
  PATH=$(cd "$venv/bin" && pwd):$PATH
  export PATH
}

# Whether a lock file fits this Python: they are for CPython 3.11 to 3.13 for Linux on x86-64.
is_locked() {
  [[ -f $2 && $(uname -sm) == "Linux x86_64" ]] &&
    "$1" -c 'import sys; sys.exit(sys.implementation.name != "cpython" or not (3, 11) <= sys.version_info < (3, 14))'
}
