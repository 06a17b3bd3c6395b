"""softfold's C ABI as the benchmarks call it: plans over rows, bound to torch tensors."""
import ctypes as C

import torch


class Tensor(C.Structure):
    _fields_ = [("data", C.c_void_p), ("device_type", C.c_int32), ("device_id", C.c_int32), ("ndim", C.c_int32),
                ("code", C.c_uint8), ("bits", C.c_uint8), ("lanes", C.c_uint16), ("shape", C.POINTER(C.c_int64)),
                ("strides", C.POINTER(C.c_int64)), ("byte_offset", C.c_uint64)]


class RowOptions(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("scale", C.c_double), ("scales", C.c_void_p), ("length", C.c_void_p),
                ("offsets", C.c_void_p), ("mask", C.c_void_p), ("axis", C.c_int32), ("causal", C.c_int32),
                ("empty", C.c_int32), ("rung", C.c_int32)]


class Context(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("cpu", C.c_void_p), ("stream", C.c_void_p), ("workspace", C.c_void_p),
                ("workspace_bytes", C.c_size_t), ("overlap", C.c_int)]


CODES = {torch.float32: (2, 32), torch.float64: (2, 64), torch.float16: (2, 16), torch.bfloat16: (4, 16),
         torch.bool: (6, 8), torch.int32: (0, 32), torch.int64: (0, 64)}
OPS = {"softmax": 0, "log_softmax": 1, "logsumexp": 2, "state": 3, "softmax_backward": 4, "log_softmax_backward": 5,
       "logsumexp_backward": 6, "finish_softmax": 8, "finish_log_softmax": 9}
RUNGS = {"automatic": 0, "naive": 1, "safe": 2, "online": 3, "tiled": 4, "fused": 5}


class Softfold:
    """A plan bound to torch tensors, run on torch's current stream."""

    def __init__(self, path):
        self.lib = C.CDLL(path)
        self.lib.softfold_last_error.restype = C.c_char_p
        self.lib.softfold_plan_kernel.restype = C.c_char_p
        self.lib.softfold_plan_workspace_bytes.restype = C.c_size_t

    def tensor(self, t):
        shape = (C.c_int64 * t.dim())(*t.shape)
        strides = (C.c_int64 * t.dim())(*t.stride())
        code, bits = CODES[t.dtype]
        r = Tensor(t.data_ptr(), 2, t.device.index or 0, t.dim(), code, bits, 1, shape, strides, 0)
        r.keep = (shape, strides, t)
        return r

    def tensors(self, all):
        return (Tensor * len(all))(*[self.tensor(t) for t in all])

    def view(self, options, name, tensor, keep):
        """A tensor among the options."""
        keep.append(self.tensor(tensor))
        setattr(options, name, C.addressof(keep[-1]))

    def context(self, stream):
        context = Context()
        self.lib.softfold_context_init(C.byref(context))
        context.stream = stream.cuda_stream
        return context

    def bound(self, make_plan, operation, inputs, outputs, options, stream, keep):
        """The call of a plan with a workspace of its own. make_plan: the C function; operation: what it takes in front of
        the tensors; keep: what has to live as long."""
        ins, outs, context = self.tensors(inputs), self.tensors(outputs), self.context(stream)
        storage = C.create_string_buffer(4096 + 16)
        at = C.c_void_p((C.addressof(storage) + 15) & ~15)

        def make():
            if make_plan(at, *operation, ins, C.c_size_t(len(ins)), outs, C.c_size_t(len(outs)), C.byref(options),
                         C.byref(context)) != 0:
                raise RuntimeError(self.lib.softfold_last_error().decode())

        make()
        need = self.lib.softfold_plan_workspace_bytes(at)
        if need:
            workspace = torch.empty(need, dtype=torch.uint8, device="cuda")
            context.workspace, context.workspace_bytes = workspace.data_ptr(), need
            keep.append(workspace)
            make()

        def run(lib=self.lib, keep=(keep, inputs, outputs, ins, outs, options, storage, context)):
            if lib.softfold_plan_run(at) != 0:
                raise RuntimeError(lib.softfold_last_error().decode())

        run.kernel = self.lib.softfold_plan_kernel(at).decode()
        run.workspace_bytes = need
        return run

    def plan(self, op, inputs, output, stream, axis=-1, rung="automatic", mask=None, length=None, offsets=None,
             scales=None):
        o, keep = RowOptions(), []
        self.lib.softfold_row_options_init(C.byref(o))
        o.axis, o.rung = axis, RUNGS[rung]
        for name, value in (("mask", mask), ("length", length), ("offsets", offsets), ("scales", scales)):
            if value is not None:
                self.view(o, name, value, keep)
        return self.bound(self.lib.softfold_plan_rows, [OPS[op]], inputs, [output], o, stream, keep)
