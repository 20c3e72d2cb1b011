# Sourced by the other scripts: a virtual environment of the project's own, made and filled when it is missing or stale.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '%s\n' "$*" >&2; }

# A Python that we support: the one called python3 where it will do, unless PYTHON names one.
find_python() {
  local candidate
  for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.10}; do
    if "$candidate" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2])' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  say "No Python of version 3.10 or newer was found; install one, or name it in PYTHON."
  exit 1
}

# environment FOLDER REQUIREMENT...: make FOLDER hold the project and the requirements; prints nothing on stdout.
environment() {
  local folder=$1 python wanted
  shift
  python=$(find_python) || exit 1
  wanted=$(printf '%s\n' "$python" "$@" && cat "$root/pyproject.toml" "$root"/tests/constraints/*.txt)
  if [ "$(cat "$folder/.made-from" 2>/dev/null)" != "$wanted" ]; then
    say "Making the environment $folder …"
    rm -rf "$folder"
    "$python" -m venv "$folder"
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
    printf '%s\n' "$wanted" >"$folder/.made-from"
  fi
}
