#!/usr/bin/env bash
# clang-tidy (profile: .clang-tidy) over the compiled sources that a change is most likely to break: scripts/tidy.sh
# [PATTERN] takes those whose path matches PATTERN. It reads the commands of build/clang, so build that first
# (cmake --preset clang && cmake --build build/clang).
set -euo pipefail
cd "$(dirname -- "${BASH_SOURCE[0]}")/.."

pattern=${1:-'^(src|cli|examples)/'}
[[ -e build/clang/compile_commands.json ]] || {
  echo "no build/clang/compile_commands.json: cmake --preset clang && cmake --build build/clang" >&2
  exit 1
}
mapfile -t files < <(git ls-files -- '*.cc' | grep -E "$pattern" |
  while IFS= read -r file; do ! grep -qF "/$file\"" build/clang/compile_commands.json || echo "$file"; done)
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy --quiet -p build/clang
echo "clang-tidy: ${#files[@]} files"
