#!/usr/bin/env bash
# From a checkout to a tuned setting on a CPU machine: installs into .venv, makes a tiny model and
# runs a small sweep. Needs Python 3.11 or 3.12, 6 GiB of memory; no GPU. For the disk see install.sh.
#
#   bash scripts/quickstart.sh [--install-only] [key=value ...]    e.g. search.num_trials=3
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/install.sh"
cd "$ROOT"

install_only=false
if [[ "${1:-}" == "--install-only" ]]; then
  install_only=true
  shift
fi

require_memory 6
install_package
if $install_only; then
  exit 0
fi

"$VENV_BIN/python" scripts/make_demo_assets.py --out demo/tiny
"$VENV_BIN/autotune" sweep search_spaces/quickstart_cpu.yaml "$@"
echo "Results are in $ROOT/sweeps/quickstart_cpu"
