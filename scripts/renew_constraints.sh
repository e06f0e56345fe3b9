#!/usr/bin/env bash
# Resolves pyproject.toml's ranges anew and writes constraints/cpu.txt and constraints/gpu.txt.
# Needs uv on PATH (or UV=its path); reads package metadata only. Run the tests before committing.
#
#   bash scripts/renew_constraints.sh
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# verl's own GPU set pins this release of transformers; one release for both sets.
echo "transformers==5.9.0" >"$work/pins.txt"

# resolve PYTHON_VERSION TORCH [EXTRA...]: print one name==version a line.
resolve() {
  local python="$1" torch="$2" extras=() extra
  for extra in "${@:3}"; do
    extras+=(--extra "$extra")
  done
  (cat "$work/pins.txt" && echo "torch==$torch") >"$work/constraints.txt"
  "${UV:-uv}" pip compile pyproject.toml "${extras[@]}" --quiet --no-header --no-annotate \
    --constraints "$work/constraints.txt" --python-version "$python" \
    --python-platform x86_64-manylinux_2_28
}

resolve 3.11 "2.13.*" test >"$work/cpu.txt"
{
  cat <<'HEADER'
# Releases that ran together on CPU with Python 3.11; pip also resolves them on 3.12.
# pip install -c constraints/cpu.txt -e .
# Written by scripts/renew_constraints.sh; do not edit.
# torch names no build, so that pip takes a CPU build where it finds one; the CUDA packages that
# only a CUDA build of torch asks for are left out.
torch==2.13.*
HEADER
  grep -Ev '^(torch|triton|cuda-[a-z]+|nvidia-[a-z0-9-]+)==' "$work/cpu.txt"
} >"$work/cpu_with_header.txt"

resolve 3.12 "2.11.0" gpu test >"$work/gpu.txt"
{
  cat <<'HEADER'
# Releases for NVIDIA GPUs (Python 3.12, CUDA 13): pip install -c constraints/gpu.txt -e '.[gpu]'
# Written by scripts/renew_constraints.sh; do not edit.
HEADER
  cat "$work/gpu.txt"
} >"$work/gpu_with_header.txt"

mv "$work/cpu_with_header.txt" constraints/cpu.txt
mv "$work/gpu_with_header.txt" constraints/gpu.txt
