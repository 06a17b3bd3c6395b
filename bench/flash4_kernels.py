#!/usr/bin/env python3
"""Compiles FlashAttention-4's forward kernels for Hopper ahead of time, on a machine that needs no GPU.

usage: flash4_kernels.py OUT [--sizes 64,128,256]

Needs flash-attn-4 with nvidia-cutlass-dsl and its cu13 libraries. flash-attn-4 compiles under torch's fake tensors and
keeps what it compiled; this links each kernel into OUT/SIZE.so or OUT/SIZE_causal.so, beside the runtime that they call,
and writes the package's name and version to OUT/version. `gpu_attention.py --flash4 OUT` calls them through tvm_ffi,
which must be whole there: both of its libraries, libtvm_ffi.so and libtvm_ffi_testing.so, and typing_extensions 4.13.
"""
import argparse
import importlib.metadata
import os
import shutil
import subprocess
import tempfile
from pathlib import Path


def pretend_a_gpu(torch):
    """What flash-attn-4 asks of the device when nothing is run."""
    import torch._subclasses.fake_tensor as fake
    fake.init_gpu_context = lambda *_: None
    torch.cuda.current_device = lambda: 0
    torch.cuda.is_available = lambda: True
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    return fake.FakeTensorMode()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sizes", default="64,128,256")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    cache = Path(tempfile.mkdtemp())
    os.environ.update(FLASH_ATTENTION_ARCH="sm_90a", CUTE_DSL_ARCH="sm_90a", FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED="1",
                      FLASH_ATTENTION_CUTE_DSL_CACHE_DIR=str(cache))
    import torch
    mode = pretend_a_gpu(torch)
    import cutlass.cute as cute
    import flash_attn.cute.interface as flash4
    import tvm_ffi
    flash4.get_num_sms_for_selection = lambda *_, **__: 132
    runtime = [Path(p) for p in cute.runtime.find_runtime_libraries(enable_tvm_ffi=False)]
    for path in runtime:
        shutil.copy(path, args.out)
    ffi = Path(tvm_ffi.libinfo.find_libtvm_ffi())
    for size in map(int, args.sizes.split(",")):
        for causal in (False, True):
            before = set(cache.rglob("*.o"))
            with mode:
                q, k, v = (torch.empty(2, 512, 2048 // size, size, dtype=torch.bfloat16, device="cuda") for _ in range(3))
                flash4.flash_attn_func(q, k, v, causal=causal)
            (kernel,) = set(cache.rglob("*.o")) - before
            name = f"{size}{'_causal' if causal else ''}.so"
            subprocess.run(["g++", "-shared", "-o", args.out / name, kernel, *runtime, ffi, "-Wl,-rpath,$ORIGIN"], check=True)
            print(name, flush=True)
    shutil.rmtree(cache)
    (args.out / "version").write_text(f"flash-attn-4 {importlib.metadata.version('flash-attn-4')}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
