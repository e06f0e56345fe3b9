# Shared by quickstart.sh and test.sh, sourced: makes .venv at the repository's root and installs
# this package into it, once. Sets ROOT (absolute) and VENV_BIN. Needs Python 3.11 or 3.12 with pip.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="$ROOT/.venv"
VENV_BIN="$VENV/bin"

stop() {
  echo "$1" >&2
  exit 2
}

# An activated environment must not leak into the one made here.
unset VIRTUAL_ENV PYTHONHOME PYTHONPATH

find_python() {
  local name
  for name in python3.11 python3.12 python3 python; do
    if "$name" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' \
      >/dev/null 2>&1; then
      command -v "$name"
      return
    fi
  done
  stop "No Python 3.11 or 3.12 with venv and pip was found on PATH: install one and run this again."
}

# require_memory GIB: stop unless that much is free.
require_memory() {
  local free_gib
  [[ -r /proc/meminfo ]] || return 0
  free_gib=$(awk '/^MemAvailable:/ {print int($2 / 1048576)}' /proc/meminfo)
  ((free_gib >= $1)) || stop "Only $free_gib GiB of memory are free, $1 GiB are needed: close other programs."
}

# require_disk GIB: stop unless that much is free where the repository lies.
require_disk() {
  local free_gib
  free_gib=$(df -Pk "$ROOT" | awk 'NR == 2 {print int($4 / 1048576)}')
  ((free_gib >= $1)) || stop "Only $free_gib GiB of disk are free at $ROOT, $1 GiB are needed."
}

# What an installation is made from; cksum, because every system has it.
stamp_of_files() {
  cat "$ROOT/pyproject.toml" "$ROOT/constraints/cpu.txt" | cksum | tr ' ' '-'
}

# install_package [EXTRAS]: e.g. install_package "[test]". A finished installation is left as it is.
install_package() {
  local extras="${1:-}" python log="$VENV/install.log" started=$SECONDS files wanted
  files="$(stamp_of_files)"
  wanted="$files $extras"
  if grep -Fqx "$wanted" "$VENV/stamps" 2>/dev/null; then
    return
  fi
  if [[ -d "$VENV" && ! -f "$VENV/stamps" ]]; then
    stop "$VENV was not made by this script: move it away and run this again."
  fi
  if [[ ! -x "$VENV_BIN/pip" ]]; then
    # On Linux x86-64 PyPI's torch is a CUDA build, which takes most of this.
    require_disk 12
    python="$(find_python)" || exit 2
    echo "Making $VENV with $("$python" --version)"
    mkdir -p "$VENV" && touch "$VENV/stamps"
    "$python" -m venv "$VENV"
  fi
  echo "Installing (a minute or more; details in $log)"
  "$VENV_BIN/python" -m pip install -c "$ROOT/constraints/cpu.txt" -e "$ROOT$extras" \
    >"$log" 2>&1 </dev/null &
  local pip_pid=$! seen=0 lines
  # A background process ignores Ctrl-C by itself.
  trap 'kill "$pip_pid" 2>/dev/null || true; stop "Installation interrupted: run this again to finish it."' INT TERM
  while kill -0 "$pip_pid" 2>/dev/null; do
    sleep 2
    lines=$(grep -c '^Collecting' "$log" 2>/dev/null || true)
    if ((lines >= seen + 25)); then
      echo "  $lines packages found, $((SECONDS - started)) s"
      seen=$lines
    fi
  done
  if ! wait "$pip_pid"; then
    tail -n 20 "$log" >&2
    stop "Installation failed; everything pip said is in $log."
  fi
  trap - INT TERM
  # Stamps of other files no longer say what is installed.
  sed "/^$files /!d" "$VENV/stamps" >"$VENV/stamps.new"
  echo "$wanted" >>"$VENV/stamps.new"
  mv "$VENV/stamps.new" "$VENV/stamps"
  echo "Installed in $((SECONDS - started)) s"
}
