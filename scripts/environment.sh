# Sourced by the other scripts: makes .venv in the project's folder, with ringbert and the extras named in $1,
# unless it exists already. RINGBERT_VENV sets another folder. Needs bash, python3 (>= 3.11) and a package index.
make_environment() {
  local extras=$1 venv=${RINGBERT_VENV:-.venv} wanted
  wanted="$(cksum < pyproject.toml) $(pwd)"
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { echo "error: $(python3 --version) is too old: ringbert needs Python 3.11 or newer" >&2; return 1; }
  if ! "$venv/bin/python" -m pip --version > /dev/null 2>&1; then
    echo "+ python3 -m venv $venv"
    python3 -m venv "$venv"
  fi
  if [[ $(cat "$venv/.ringbert-$extras" 2>/dev/null) != "$wanted" ]]; then
    echo "+ $venv/bin/pip install -e '.[$extras]'    # silent for a minute or two"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -e ".[$extras]"
    echo "$wanted" > "$venv/.ringbert-$extras"
  fi
  PATH=$(cd "$venv/bin" && pwd):$PATH
  export PATH
}
