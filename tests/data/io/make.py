#!/usr/bin/env python3
"""Writes the files beside it: arrays as numpy, ml_dtypes and safetensors write them.

Element i of every array is ((i % 17) - 8) / 2 for floating dtypes, (i % 17) - 8 for integers, i % 3 == 0 for bool.
Needs numpy 2.4, ml_dtypes, safetensors.
"""

import pathlib

import ml_dtypes
import numpy as np
import safetensors.numpy

HERE = pathlib.Path(__file__).parent


def array(dtype, *shape):
    i = np.arange(int(np.prod(shape)))
    if dtype == "bool":
        values = i % 3 == 0
    elif dtype.startswith("int"):
        values = i % 17 - 8
    else:
        values = (i % 17 - 8) / 2
    return values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype).reshape(shape)


DTYPES = ["float32", "float64", "float16", "bfloat16", "bool", "int32", "int64"]

for dtype in DTYPES:
    np.save(HERE / f"{dtype}.npy", array(dtype, 3, 5, 7))
np.save(HERE / "scalar.npy", array("float64"))
np.save(HERE / "vector.npy", array("float32", 19))
np.save(HERE / "empty.npy", array("float32", 2, 0, 5))
np.save(HERE / "rank8.npy", array("float32", 1, 2, 1, 1, 3, 1, 1, 2))
for version in (2, 3):
    with open(HERE / f"version{version}.npy", "wb") as f:
        np.lib.format.write_array(f, array("float32", 3, 5, 7), version=(version, 0))

# To be refused.
np.save(HERE / "fortran.npy", np.asfortranarray(array("float32", 3, 5)))
np.save(HERE / "big_endian.npy", array("float32", 3, 5).astype(">f4"))
np.save(HERE / "objects.npy", np.array([1, "a"], dtype=object), allow_pickle=True)
np.save(HERE / "structured.npy", np.zeros(3, dtype=[("a", "<f4"), ("b", "<i4")]))
np.save(HERE / "complex.npy", np.zeros(3, dtype="complex64"))
np.save(HERE / "rank9.npy", np.zeros((1,) * 9, dtype="float32"))

one = array("float32", 3, 5, 7)
safetensors.numpy.save_file({"logits": one}, HERE / "one.safetensors", metadata={"made_by": "make.py"})
many = {f"x.{dtype}": array(dtype, 3, 5, 7) for dtype in DTYPES}
many |= {"scalar": array("float64"), "empty": array("float32", 2, 0, 5), "bytes": np.zeros(3, dtype=np.uint8)}
safetensors.numpy.save_file(many, HERE / "many.safetensors")
safetensors.numpy.save_file({}, HERE / "none.safetensors")
