#!/usr/bin/env bash
# Every kernel of src/cuda begins with begin_in_order() (src/cuda/in_order.cuh): one that does not, launched with
# Context::overlap, would read what the kernel before it has not written yet. Attention's, which are never launched so,
# are left out.
set -euo pipefail
cd "$(dirname -- "${BASH_SOURCE[0]}")/.."
mapfile -t sources < <(git ls-files 'src/cuda/*.cu' 'src/cuda/*.cuh' | grep -v /attention)
awk '
  FNR == 1 { open = 0 }
  /__global__/ { open = 1; where = FILENAME ":" FNR; kernels++ }
  open && /;$/ { open = 0 }
  open && /\{$/ {
    do getline; while (/^ *\/\// || /__shared__/)
    if (!/begin_in_order\(\);/) { print where ": begins with" $0; wrong++ }
    open = 0
  }
  END {
    if (!kernels) { print "no kernel was found"; wrong++ }
    exit wrong > 0
  }' "${sources[@]}"
