#!/usr/bin/env bash
# Everything that eight GPUs of one host are to show, with one command, on a machine that has PyTorch but
# no network: see scripts/gpu/eight_gpus.py for its parts. What is finished is not run again.
#
#   bash scripts/gpu/eight_gpus.sh BUNDLE [options of eight_gpus.py]
#   LIMIT_S=540 RESULTS=out bash scripts/gpu/eight_gpus.sh bundle
#
# SITE, PYTHON and LIMIT_S mean what they mean in run_sweep.sh. RESULTS (default: results) gets the
# records and landscapes, and is what a machine that starts from nothing goes on from.
set -euo pipefail

if (($# < 1)); then
  sed -n '2,/^set /p' "${BASH_SOURCE[0]}" | sed '$d; s/^# \{0,1\}//' >&2
  exit 2
fi
bundle="$(realpath "$1")"
shift
results="$(realpath -m "${RESULTS:-results}")"
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
cd "$root"
source scripts/gpu/environment.sh

limit=()
if [[ -n "${LIMIT_S:-}" ]]; then
  limit=(timeout --signal=INT --kill-after=60 "$LIMIT_S")
fi
"${limit[@]}" "$python" scripts/gpu/eight_gpus.py --results "$results" "$@"
