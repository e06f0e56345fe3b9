#!/usr/bin/env bash
# Lint, types and the tests that every change must pass, in .venv, which is made when needed; two
# files of tests at a time. With arguments, which go to pytest, one at a time: `-m nightly` runs those
# that take minutes each, `-m ""` all of them.
#
#   bash scripts/test.sh [pytest arguments]    e.g. tests/test_space.py -k empty
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/install.sh"
cd "$ROOT"

install_package "[test]"
# The tests read the quickstart's model and data.
"$VENV_BIN/python" scripts/make_demo_assets.py --out demo/tiny
"$VENV_BIN/ruff" check .
"$VENV_BIN/mypy"
if (($# == 0)); then
  # In the order of the files: the longest one is not the last.
  set -- -n 2 --dist loadfile --no-loadscope-reorder
fi
"$VENV_BIN/python" -m pytest -q "$@"
