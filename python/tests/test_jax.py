"""softfold.jax: JAX's values, jit, first and second gradients, vmap; the declared ABI against JAX's own headers."""

import pathlib
import shutil
import subprocess

import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")
jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from conftest import bits  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

import softfold  # noqa: E402
import softfold.jax as sf  # noqa: E402

THEIRS = {"softmax": jax.nn.softmax, "log_softmax": jax.nn.log_softmax, "logsumexp": jax.scipy.special.logsumexp}
NAMES = list(THEIRS)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("name", NAMES)
def test_values_are_jax_s_and_bits_are_numpy_s(rng, dtype, axis, name):
    x = jnp.asarray(rng.standard_normal((5, 70, 3)), dtype)
    got, want = getattr(sf, name)(x, axis), THEIRS[name](x.astype("float64"), axis)
    assert got.dtype == dtype and got.shape == want.shape and isinstance(got, jax.Array)
    tolerance = {"float64": 1e-13, "float32": 1e-5, "float16": 4e-3, "bfloat16": 4e-2}[dtype]
    np.testing.assert_allclose(got.astype("float64"), want, rtol=tolerance, atol=tolerance)
    assert bits(got) == bits(getattr(softfold, name)(np.asarray(x), axis))
    assert bits(jax.jit(lambda x: getattr(sf, name)(x, axis))(x)) == bits(got)


def test_the_package_s_own_functions_take_jax_arrays(rng):
    x = jnp.asarray(rng.standard_normal((4, 30)))
    y = softfold.softmax(x)
    assert isinstance(y, jax.Array) and bits(y) == bits(softfold.softmax(np.asarray(x)))
    assert softfold.logsumexp(x, 0, keepdims=True).shape == (1, 30)
    assert bits(softfold.state(x, -1)) == bits(softfold.state(np.asarray(x), -1))
    dx = softfold.softmax_backward(softfold.softmax(x, -1), x, -1)
    assert isinstance(dx, jax.Array) and dx.shape == x.shape


@pytest.mark.parametrize("axis", [None, (0, 2), (1, 2), (2, 0)])
def test_several_axes(rng, axis):
    x = jnp.asarray(rng.standard_normal((3, 4, 5)))
    for name in NAMES:
        np.testing.assert_allclose(getattr(sf, name)(x, axis), THEIRS[name](x, axis), rtol=1e-12)
    assert sf.logsumexp(x, axis, keepdims=True).shape == THEIRS["logsumexp"](x, axis, keepdims=True).shape


OPTIONS = {
    "plain": {},
    "scale": {"scale": 0.3},
    "scales": {"scales": np.array([0.5, 2.0, 1.0])},
    "lengths": {"lengths": np.array([4, 1, 3])},
    "mask": {"mask": np.array([True, False, True, True])},
    "causal": {"causal": True},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_first_and_second_gradients(rng, name, options):
    x = jnp.asarray(rng.standard_normal((3, 4)))

    def function(x):
        y = getattr(sf, name)(x, -1, **OPTIONS[options])
        return jnp.where(jnp.isfinite(y), y, 0)

    check_grads(function, (x,), order=2, modes=["rev"], atol=1e-5, rtol=1e-5)
    check_grads(jax.jit(function), (x,), order=1, modes=["rev"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("at", [[0, 4, 4, 9], [2, 4, 4, 7], [3]], ids=str)
def test_ragged_rows(rng, name, at):
    x, offsets = jnp.asarray(rng.standard_normal(9)), jnp.array(at)
    got = getattr(sf, name)(x, 0, offsets=offsets)
    assert bits(got) == bits(getattr(softfold, name)(np.asarray(x), offsets=np.asarray(offsets)))

    def function(x):
        y = getattr(sf, name)(x, 0, offsets=offsets)
        return jnp.where(jnp.isfinite(y), y, 0)

    check_grads(function, (x,), order=2, modes=["rev"], atol=1e-5, rtol=1e-5)
    for scales in (2.0, [2.0], [2.0, 0.5, 1.0][: len(at) - 1]):

        def scaled(x):
            y = getattr(sf, name)(x, 0, offsets=offsets, scales=jnp.asarray(scales))
            return jnp.where(jnp.isfinite(y), y, 0)

        check_grads(scaled, (x,), order=2, modes=["rev"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("options", [o for o in OPTIONS])
def test_vmap(rng, options):
    x = jnp.asarray(rng.standard_normal((6, 3, 4)))
    keywords = OPTIONS[options]
    for name in NAMES:
        got = jax.vmap(lambda row: getattr(sf, name)(row, -1, **keywords))(x)
        want = jnp.stack([getattr(sf, name)(row, -1, **keywords) for row in x])
        assert bits(got) == bits(want)


def test_refusals():
    x = jnp.ones((2, 3))
    with pytest.raises(softfold.Error, match="axis 2"):
        sf.softmax(x, 2)
    with pytest.raises(softfold.DTypeError, match="complex"):
        sf.softmax(x.astype(complex))
    with pytest.raises(softfold.Error, match="never change"):
        softfold.softmax(x, out=np.empty((2, 3)))
    with pytest.raises(Exception, match="length 7 for row 0"):
        sf.softmax(x, lengths=jnp.array([7, 1])).block_until_ready()
    with pytest.raises(Exception, match="broadcasts to"):
        sf.softmax(x, mask=jnp.ones((4,), bool)).block_until_ready()


CHECK = """
#include "xla_ffi.hpp"
#include <type_traits>
#include <xla/ffi/api/c_api.h>
namespace x = softfold::python::xla;
#define SAME(mine, field, theirs, name) static_assert(offsetof(x::mine, field) == offsetof(theirs, name))
SAME(CallFrame, api, XLA_FFI_CallFrame, api);
SAME(CallFrame, context, XLA_FFI_CallFrame, ctx);
SAME(CallFrame, arguments, XLA_FFI_CallFrame, args);
SAME(CallFrame, results, XLA_FFI_CallFrame, rets);
SAME(CallFrame, attributes, XLA_FFI_CallFrame, attrs);
SAME(Buffers, buffers, XLA_FFI_Args, args);
SAME(Buffers, buffers, XLA_FFI_Rets, rets);
SAME(Buffer, dtype, XLA_FFI_Buffer, dtype);
SAME(Buffer, data, XLA_FFI_Buffer, data);
SAME(Buffer, dims, XLA_FFI_Buffer, dims);
SAME(Attributes, names, XLA_FFI_Attrs, names);
SAME(Attributes, values, XLA_FFI_Attrs, attrs);
SAME(Scalar, value, XLA_FFI_Scalar, value);
SAME(Metadata, version, XLA_FFI_Metadata, api_version);
SAME(Metadata, traits, XLA_FFI_Metadata, traits);
SAME(MetadataExtension, metadata, XLA_FFI_Metadata_Extension, metadata);
using Theirs = std::remove_pointer_t<decltype(XLA_FFI_CallFrame::extension_start)>;  // newer headers rename it
SAME(Extension, type, Theirs, type);
SAME(Extension, next, Theirs, next);
SAME(Api, error_create, XLA_FFI_Api, XLA_FFI_Error_Create);
SAME(Api, stream_get, XLA_FFI_Api, XLA_FFI_Stream_Get);
SAME(ErrorArguments, code, XLA_FFI_Error_Create_Args, errc);
SAME(StreamArguments, stream, XLA_FFI_Stream_Get_Args, stream);
static_assert(x::kMajor == XLA_FFI_API_MAJOR);
static_assert(x::kBool == XLA_FFI_DataType_PRED && x::kInt32 == XLA_FFI_DataType_S32);
static_assert(x::kInt64 == XLA_FFI_DataType_S64 && x::kFloat16 == XLA_FFI_DataType_F16);
static_assert(x::kFloat32 == XLA_FFI_DataType_F32 && x::kFloat64 == XLA_FFI_DataType_F64);
static_assert(x::kBFloat16 == XLA_FFI_DataType_BF16 && XLA_FFI_AttrType_SCALAR == 3);
static_assert(x::kInvalidArgument == XLA_FFI_Error_Code_INVALID_ARGUMENT && x::kInternal == XLA_FFI_Error_Code_INTERNAL);
static_assert(XLA_FFI_Extension_Metadata == 1);
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
def test_the_declared_abi_is_jax_s(tmp_path):
    source = tmp_path / "check.cc"
    source.write_text(CHECK)
    own = pathlib.Path(__file__).parents[1] / "src"
    command = ["g++", "-std=c++20", "-fsyntax-only", "-w", f"-I{own}", f"-I{jax.ffi.include_dir()}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
