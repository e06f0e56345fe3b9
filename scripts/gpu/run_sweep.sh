#!/usr/bin/env bash
# Runs a sweep on a GPU machine that has PyTorch but no network, from this checkout and a bundle of
# packages: a folder with install_bundle.sh and the parts (site.part*) that it puts together.
#
#   bash scripts/gpu/run_sweep.sh BUNDLE SWEEP.yaml [key=value ...]
#   LIMIT_S=500 RESULTS=out bash scripts/gpu/run_sweep.sh bundle \
#     search_spaces/qwen2.5-0.5b_ppo_2xh200.yaml search.num_trials=6
#
# Environment:
#   SITE      where the packages go; default ~/autotune_site
#   PYTHON    the Python that holds PyTorch; default python3
#   LIMIT_S   seconds after which the sweep is interrupted as by Ctrl-C; finished trials are kept and
#             the same command goes on; default: no limit
#   RESULTS   folder that gets the sweep's records and logs as one .tar.gz, however the sweep ended
#   COMMAND   autotune's command; default sweep (calibrate measures the links alone)
#   SCRIPT    a script of this checkout that runs instead, e.g. scripts/verify_aa.py
set -euo pipefail

if (($# < 2)); then
  sed -n '2,/^set /p' "${BASH_SOURCE[0]}" | sed '$d; s/^# \{0,1\}//' >&2
  exit 2
fi
bundle="$(realpath "$1")"
sweep="$(realpath "$2")"
shift 2
results="${RESULTS:+$(realpath -m "${RESULTS:-.}")}"
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
cd "$root"
source scripts/gpu/environment.sh

# The random models that the sweep file names, if they are ours.
while read -r folder; do
  name="${folder##*/}"
  size="${name#qwen2.5-}"
  "$python" scripts/make_demo_assets.py --size "${size/b/B}" --out "$folder"
done < <(grep -oE 'demo/(tiny|qwen2\.5-[0-9.]+b)' "$sweep" | sort -u)

pack_results() {
  [[ -n "$results" && -d sweeps ]] || return 0
  mkdir -p "$results"
  # Ray Tune's own files are large and nothing is read from them.
  tar -czf "$results/sweeps.tar.gz" --exclude=tune sweeps
  echo "Results: $results/sweeps.tar.gz"
}
trap pack_results EXIT

limit=()
if [[ -n "${LIMIT_S:-}" ]]; then
  limit=(timeout --signal=INT --kill-after=60 "$LIMIT_S")
fi
program=(-m autotune.cli "${COMMAND:-sweep}")
if [[ -n "${SCRIPT:-}" ]]; then
  program=("$SCRIPT")
fi
"${limit[@]}" "$python" "${program[@]}" "$sweep" "$@"
