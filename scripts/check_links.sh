#!/usr/bin/env bash
# Every relative link in a tracked Markdown file leads to a file that is there.
set -euo pipefail
cd "$(dirname -- "${BASH_SOURCE[0]}")/.."

broken=0 links=0
while IFS= read -r page; do
  while IFS= read -r target; do
    target=${target%%#*}
    if [[ -z $target || $target =~ ^[a-z]+: ]]; then continue; fi
    links=$((links + 1))
    [[ -e $(dirname -- "$page")/$target ]] && continue
    echo "$page: no $target"
    broken=$((broken + 1))
  done < <(grep -oE '\]\([^) ]+\)' "$page" | sed 's/^](//; s/)$//' || true)
done < <(git ls-files -- '*.md')
echo "$links relative links, $broken broken"
((broken == 0))
