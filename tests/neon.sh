#!/usr/bin/env bash
# The known bits on another processor: the library and tests/backends/known_bits.cc compiled for AArch64 (NEON) and
# run by qemu. Takes a minute or two.
#
#   tests/neon.sh [TABLE]        (default tests/known_bits.txt)
#
# Exits with 77 (skipped) where the cross compiler, qemu or Highway's headers are missing:
#   apt-get install g++-aarch64-linux-gnu qemu-user-static libhwy-dev
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
table=$(realpath -- "${1:-$root/tests/known_bits.txt}")

need() { [[ -n $2 ]] || { echo "skipped: $1 is missing" && exit 77; }; }
compiler=$(command -v aarch64-linux-gnu-g++ || true)
qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64 || true)
need aarch64-linux-gnu-g++ "$compiler"
need qemu-aarch64-static "$qemu"
need ninja "$(command -v ninja || true)"
need hwy/highway.h "$(find /usr/include/hwy/highway.h 2>/dev/null || true)"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/include"
ln -s /usr/include/hwy "$work/include/hwy" # the headers alone: with one static target, Highway's library is not needed

# Most of what they cost is the headers that they share.
together() { printf '#include "%s"\n' "$@"; }
# The CPU's sources that Highway compiles once for every target, here for one, and the others.
targets=("$root"/src/cpu/{attention_tile,chunk_ops_float}.cc) # the longest
mapfile -t smaller < <(grep -l foreach_target "$root"/src/cpu/*.cc | grep -vFx -f <(printf '%s\n' "${targets[@]}"))
mapfile -t drivers < <(grep -L foreach_target "$root"/src/cpu/*.cc)
together "${smaller[@]}" >"$work/smaller.cc"
together "$root"/src/front/*.cc >"$work/front.cc"
together "${drivers[@]}" >"$work/drivers.cc"
together "$root"/tests/*.cc >"$work/cases.cc"

# shellcheck disable=SC2016  # ninja's own variables
{
  printf 'flags = -std=c++20 -ffp-contract=off -Wall -Wextra -DHWY_COMPILE_ONLY_STATIC'
  printf ' -I%s/include -I%s/src -I%s/tests -isystem %s/include\n' "$root" "$root" "$root" "$work"
  printf 'rule compile\n  command = %s $flags $optimise -c $in -o $out\n' "$compiler"
  printf 'rule link\n  command = %s -static $in -o $out -pthread\n' "$compiler"
  objects=()
  add_objects() { # OPTIMISE SOURCE...
    local source
    for source in "${@:2}"; do
      objects+=("${#objects[@]}.o")
      printf 'build %s: compile %s\n  optimise = %s\n' "${objects[-1]}" "$source" "$1"
    done
  }
  add_objects -O1 "${targets[@]}" "$work/smaller.cc" # what the bits are made by; the rest takes longer to compile than to run
  add_objects -O0 "$work"/{drivers,front,cases}.cc "$root"/tests/backends/known_bits.cc
  printf 'build known_bits: link %s\n' "${objects[*]}"
} >"$work/build.ninja"
ninja --quiet -C "$work" -j "$(nproc)"

# Two processors' worth: the emulated program has one thread at work.
status=0
"$qemu" "$work/known_bits" "$table" 0 2 &
"$qemu" "$work/known_bits" "$table" 1 2 || status=1
wait $! || status=1
exit $status
