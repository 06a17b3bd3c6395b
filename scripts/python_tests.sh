#!/usr/bin/env bash
# Installs the Python package into a virtual environment of its own (build/python-tests-TAG, TAG being the Python's) and
# runs its tests there.
#
#   scripts/python_tests.sh [BUILD] [PYTEST ARGUMENT...]
#
#   BUILD   a build folder whose libsoftfold is packaged as it is (default build/test; built anew if it has none)
#
# Needs Python 3.10 or newer with venv, and the packages of python/requirements-test.txt from PyPI (the first time; what
# is there is kept). Where those cannot be had it says so and exits with 77: skipped. PYTHON=... chooses the Python,
# python3 by default. The tests of PyTorch, JAX and CuPy run where that Python has them, else they are skipped by name.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

prebuilt=$root/build/test
if (($# > 0)) && [[ $1 != -* ]]; then prebuilt=$(cd -- "$1" && pwd) && shift; fi
python=${PYTHON:-python3}

skip() {
  note "skipped: $1"
  exit 77
}

"$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null ||
  skip "no $python of 3.10 or newer with venv (Debian: apt-get install python3-venv python3-dev)"
"$python" -c 'import sysconfig, os, sys; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
  skip "no Python.h for $python (Debian: apt-get install python3-dev)"

tag=$("$python" -c 'import sys; print("cp{}{}{}".format(*sys.version_info[:2], sys.abiflags))')
venv=$root/build/python-tests-$tag
log=$venv.log
mkdir -p "$root/build"
[[ -x $venv/bin/python ]] || "$python" -m venv --system-site-packages "$venv" >"$log" 2>&1 ||
  skip "no virtual environment could be made (see $log)"
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-compile -r "$root/python/requirements-test.txt" \
  >"$log" 2>&1 ||
  skip "the packages of python/requirements-test.txt could not be installed (see $log)"

options=(--config-settings="build-dir=$root/build/python-package-$tag")
if compgen -G "$prebuilt/src/libsoftfold.so.*" >/dev/null; then
  options+=(--config-settings="cmake.define.SOFTFOLD_PREBUILT=$prebuilt")
fi
if command -v ccache >/dev/null; then options+=(--config-settings=cmake.define.CMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
before=$SECONDS
CMAKE_BUILD_PARALLEL_LEVEL=$(jobs) "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps \
  --no-build-isolation --force-reinstall "${options[@]}" "$root" >>"$log" 2>&1 || {
  tail -n 40 "$log" >&2
  die "The Python package could not be built (all of it: $log)."
}
say "installed in $((SECONDS - before)) s: build/${venv##*/}"
cd -- "$root"
JAX_PLATFORMS=${JAX_PLATFORMS:-cpu} exec "$venv/bin/python" -m pytest -p no:cacheprovider "$@"
