#!/usr/bin/env bash
# Measures overlap plans of plain FSDP2 on the GPUs of this host, on its own links and on two slower ones
# that it imitates: without peer-to-peer access (through the host's memory), and through sockets. Goes on
# where it stopped.
#
#   bash scripts/gpu/overlap.sh BUNDLE [options of overlap_landscape.py, e.g. --ranks 2 --shape 1.5b]
#
# SITE, PYTHON and LIMIT_S mean what they mean in run_sweep.sh. RESULTS (default: results) gets, for each
# link, overlap_<link>.jsonl with every point, overlap_<link>.json with the errors of the predictions and
# the fastest plans, and traces_<link>/ with the Chrome traces of eight points, from which the exposed
# share is computed a second time.
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
mkdir -p "$results"

limit=()
if [[ -n "${LIMIT_S:-}" ]]; then
  limit=(timeout --kill-after=10 "$LIMIT_S")
fi

# measure LINK VARIABLE=VALUE ... -- further options
measure() {
  local link="$1" variables=()
  shift
  while [[ "$1" != -- ]]; do
    variables+=("$1")
    shift
  done
  shift
  local run=(env ${variables[@]+"${variables[@]}"} "${limit[@]}" "$python" scripts/overlap_landscape.py)
  # Few points with traces first: they are large.
  "${run[@]}" "$@" --out "$results/traced_$link.jsonl" --traces "$results/traces_$link" \
    --micro-batches 1 8 --layers-per-unit 4 --depths 2 --steps 1
  "$python" tests/measure/chrome_trace.py "$results/traces_$link"/*
  "${run[@]}" "$@" --out "$results/overlap_$link.jsonl"
  "$python" scripts/overlap_errors.py "$results/overlap_$link.jsonl" \
    --out "$results/overlap_$link.json"
}

measure own -- "$@"
measure host_memory NCCL_P2P_DISABLE=1 -- "$@" --micro-batches 4 8 16
measure sockets NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 -- "$@" \
  --micro-batches 16 --layers-per-unit 1 4 14 --depths 0 2 --steps 1
