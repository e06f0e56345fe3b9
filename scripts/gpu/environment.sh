# Makes the Python of a GPU machine that has PyTorch but no network ready for this checkout; sourced by
# the runners beside it, which set:
#
#   bundle    a folder with install_bundle.sh and the parts (site.part*) that it puts together
#   root      this checkout
#
# SITE and PYTHON are read from the environment, see run_sweep.sh. Leaves $python and $site.
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
