# Sourced by the other scripts: makes .venv in the project's folder, with ringbert and the extras named in $1,
# unless it exists already. RINGBERT_VENV sets another folder. Needs bash, python3 (>= 3.11) and a package index.
# The packages stay while the lock file, the Python and the path are the same; ringbert itself while pyproject.toml is.

# pip leaves compiled modules to the first start. Where a container forbids Python to keep them, each start of each rank
# would compile TensorFlow's anew: 6 of its 10 seconds.
unset PYTHONDONTWRITEBYTECODE

make_environment() {
  local extras=$1 venv=${RINGBERT_VENV:-.venv} lock=requirements/${1//,/-}.txt packages project install
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { echo "error: $(python3 --version) is too old: ringbert needs Python 3.11 or newer" >&2; return 1; }
  packages="$(cat "$lock" | cksum) $(python3 --version) $(pwd)"
  project="$packages $(cksum < pyproject.toml)"
  if ! "$venv/bin/python" -m pip --version > /dev/null 2>&1; then
    echo "+ python3 -m venv $venv"
    python3 -m venv "$venv" || return
  fi
  install=("$venv/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check)
  if command -v uv > /dev/null; then
    install=(uv pip install --quiet --python "$venv/bin/python")
  fi
  local patience="2.4 GB; silent for a minute or two, on a busy machine or a slow network for ten or more"
  # Else Python, started in the folder above, would take the clone `ringbert` for the package.
  local here=(--config-settings editable_mode=compat -e)
  if ! is_locked "$venv/bin/python" "$lock"; then
    if [[ $(cat "$venv/.ringbert-$extras" 2>/dev/null) != "$project" ]]; then
      echo "+ ${install[*]} ${here[*]} '.[$extras]'    # no lock file fits; $patience"
      "${install[@]}" "${here[@]}" ".[$extras]" || return
    fi
  else
    if [[ $(cat "$venv/.packages-$extras" 2>/dev/null) != "$packages" ]]; then
      echo "+ ${install[*]} --require-hashes -r $lock    # $patience"
      "${install[@]}" --require-hashes -r "$lock" || return
      echo "$packages" > "$venv/.packages-$extras"
    fi
    if [[ $(cat "$venv/.ringbert-$extras" 2>/dev/null) != "$project" ]]; then
      echo "+ ${install[*]} --no-deps --no-build-isolation ${here[*]} ."
      "${install[@]}" --no-deps --no-build-isolation "${here[@]}" . || return
    fi
  fi
  echo "$project" > "$venv/.ringbert-$extras"
  PATH=$(cd "$venv/bin" && pwd):$PATH
  export PATH
}

# Whether a lock file fits this Python: they are for CPython 3.11 to 3.13 for Linux on x86-64.
is_locked() {
  [[ -f $2 && $(uname -sm) == "Linux x86_64" ]] &&
    "$1" -c 'import sys; sys.exit(sys.implementation.name != "cpython" or not (3, 11) <= sys.version_info < (3, 14))'
}
