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
site="${SITE:-$HOME/autotune_site}"
python="${PYTHON:-python3}"
cd "$root"

# The packages: once for each bundle. A part that is missing is the installer's to say.
stamp="$(cat "$bundle"/site.sha256 2>/dev/null || echo unsummed)"
if [[ "$(cat "$site/bundle.stamp" 2>/dev/null)" != "$stamp" ]]; then
  PYTHON="$python" bash "$bundle/install_bundle.sh" "$bundle" "$site"
  echo "$stamp" >"$site/bundle.stamp"
fi
source "$site/env.sh"

# This package, as installed: verl finds its plug-ins through the package's metadata. What an earlier
# build left would be installed too, modules included that are no more.
rm -rf "$root/build"
"$python" -m pip install --quiet --no-index --no-deps --no-build-isolation --no-compile --upgrade \
  --target "$site" "$root"

# The random models that the sweep file names, if they are ours.
if grep -q 'demo/tiny' "$sweep"; then
  "$python" scripts/make_demo_assets.py --out demo/tiny
fi
while read -r folder; do
  size="${folder##*-}"
  "$python" scripts/make_demo_assets.py --size "${size/b/B}" --out "$folder"
done < <(grep -oE 'demo/qwen2\.5-[0-9.]+b' "$sweep" | sort -u)

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
