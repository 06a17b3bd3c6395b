#!/usr/bin/env bash
# Every kernel of src/cuda begins with begin_in_order() (src/cuda/in_order.cuh): one that does not, launched with
# Context::overlap, would read what the kernel before it has not written yet. Attention's, which are never launched so,
# are left out. begin_first() and begin_before_wait() are its other forms; the latter wants a wait_for_before().
set -euo pipefail
cd "$(dirname -- "${BASH_SOURCE[0]}")/.."
mapfile -t sources < <(git ls-files 'src/cuda/*.cu' 'src/cuda/*.cuh' | grep -v /attention)
awk '
  FNR == 1 { open = 0 }
  /^ *wait_for_before\(\);/ { waits++ }
  /__global__/ { open = 1; where = FILENAME ":" FNR; kernels++ }
  open && /;$/ { open = 0; kernels-- }  # declared, not defined
  open && /\{/ {
    first = $0
    while ((first ~ /\{$/ || first ~ /^ *\/\// || first ~ /__shared__/) && (getline first) > 0) {}
    if (first ~ /^ *begin_before_wait\(\);/) waits--
    if (first !~ /^ *begin_(in_order|first|before_wait)\(\);/) { print where ": begins with" first; wrong++ }
    open = 0
    checked++
  }
  END {
    if (!kernels || checked != kernels) { print checked " of " kernels " kernels were checked"; wrong++ }
    if (waits) { print "kernels that begin before they wait, and waits, differ by " waits; wrong++ }
    exit wrong > 0
  }' "${sources[@]}"
