#!/usr/bin/env bash
# Builds and runs programs that know nothing but an installed softfold.
#
#   tests/consumers/run.sh PREFIX [cmake_c|cmake_cxx|fold_only|fold_only_nvcc|pkgconfig_c]...
#
# PREFIX is where `cmake --install BUILD --prefix PREFIX` put it; without names, all of them. fold_only_nvcc needs nvcc
# and exits with 77 (skipped) without.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
(($# > 0)) || { sed -n '2,8s/^# \{0,1\}//p' "$0" && exit 2; }
prefix=$(cd -- "$1" && pwd)
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# by_cmake FOLDER: an external CMake project.
by_cmake() {
  cmake -S "$here/$1" -B "$work/$1" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=None >/dev/null
  cmake --build "$work/$1" >/dev/null
  "$work/$1/consumer"
}

cmake_c() { by_cmake cmake_c; }
cmake_cxx() { by_cmake cmake_cxx; }

# The headers alone: not even the library's path is known to the compiler.
fold_only() {
  by_cmake fold_only
  if readelf -d "$work/fold_only/consumer" | grep -E 'softfold|hwy|tbb'; then
    echo "fold_only: linked to more than the headers" >&2
    return 1
  fi
  # By hand, and with the contraction and the instructions that a user's own flags may allow: the same numbers.
  local strict=(-std=c++20 -Wall -Wextra -Wshadow -Wconversion -Werror -I"$prefix/include" "$here/fold_only/main.cc")
  "${CXX:-c++}" "${strict[@]}" -O0 -o "$work/plain"
  "${CXX:-c++}" "${strict[@]}" -O3 -march=native -ffp-contract=fast -o "$work/contracted"
  # An older C++ is told what is missing.
  "${CXX:-c++}" -std=c++17 -fsyntax-only -I"$prefix/include" "$here/fold_only/main.cc" 2>"$work/old" && return 1
  grep -q 'softfold needs C++20' "$work/old"
  "$work/plain" | tee "$work/plain.txt"
  "$work/contracted" | diff "$work/plain.txt" -
}

fold_only_nvcc() {
  local nvcc
  nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null) || { echo "skipped: no nvcc" && exit 77; }
  "$nvcc" -std=c++20 -O2 -arch=sm_90a -x cu -I"$prefix/include" "$here/fold_only/main.cc" -o "$work/fold_only_nvcc"
  "$work/fold_only_nvcc"
}

# The C program again, found by pkg-config, strictly C99.
pkgconfig_c() {
  local pc
  pc=$(find "$prefix" -name softfold.pc -printf '%h\n' -quit)
  export PKG_CONFIG_PATH=$pc
  # shellcheck disable=SC2046
  "${CC:-cc}" -std=c99 -pedantic -Wall -Wextra -Werror $(pkg-config --cflags softfold) "$here/cmake_c/main.c" \
    -o "$work/pkgconfig_c" $(pkg-config --libs softfold) -lm -Wl,-rpath,"$(pkg-config --variable=libdir softfold)"
  "$work/pkgconfig_c"
}

(($# > 0)) || set -- cmake_c cmake_cxx fold_only pkgconfig_c fold_only_nvcc
for consumer; do
  declare -F "$consumer" >/dev/null || { echo "no consumer is called $consumer" >&2 && exit 2; }
  printf '%-15s ' "$consumer"
  "$consumer"
done
