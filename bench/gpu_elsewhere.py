"""The points of gpu_softmax.py's group `elsewhere`: rows that no kernel for plain rows takes, as results of another dtype,
slices, masks of short rows, several outer axes, states, gradients of operands that are not alike. b: its Bench."""
import torch

from gpu_peers import label


def elements(rows, n, dtype):
    return torch.randn(rows, n, device="cuda").mul_(3).to(dtype)


def hidden(x, case):
    """The option of a case of mask or length, and the bytes that x is read and asked by."""
    rows, n, size = *x.shape, x.element_size()
    if case == "mask":
        return {"mask": torch.rand(rows, n, device="cuda") < 0.75}, x.numel() * (size + 1)
    if case == "length":
        length = torch.randint(0, n + 1, (rows,), device="cuda", dtype=torch.int32)
        return {"length": length}, int(length.sum()) * size + 4 * rows
    return {}, x.numel() * size


def run(b, op, inputs, out, case, need, peer=None, shape=None, **given):
    """A point: softfold's plan, and torch where it has the same in one call."""
    plan = b.softfold.plan(op, inputs, out, b.stream, **given)
    candidates = {f"softfold:{plan.kernel}": plan}
    if peer is not None and "torch" in b.args.peers:
        candidates[label("torch")] = peer
    dtype = inputs[0].dtype
    b.point(op, dtype, tuple(shape or inputs[0].shape), case, candidates, need, read_only=op == "logsumexp")


def widened(b, dtype, rows, n, case=""):
    """Results in float32, as routers and samplers ask for them."""
    x, y = elements(rows, n, dtype), torch.empty(rows, n, device="cuda")
    given, need = hidden(x, case)
    peer = None if case else lambda: torch.softmax(x, -1, dtype=torch.float32)
    run(b, "softmax", [x], y, f"to float32 {case}".strip(), need + 4 * x.numel(), peer, **given)


def narrowed(b, dtype, rows, n):
    x, y = elements(rows, n, torch.float32), torch.empty(rows, n, device="cuda", dtype=dtype)
    run(b, "softmax", [x], y, "to " + str(dtype).split(".")[-1], x.numel() * (4 + y.element_size()))


def masked(b, dtype, rows, n, op="softmax"):
    x = elements(rows, n, dtype)
    given, need = hidden(x, "mask")
    run(b, op, [x], torch.empty_like(x), "mask", need + x.numel() * x.element_size(), **given)


def sliced(b, dtype, rows, n):
    """All columns but the first: x and y lie differently to 16 bytes."""
    x = elements(rows, n + 1, dtype)[:, 1:]
    y = torch.empty(rows, n, device="cuda", dtype=dtype)
    run(b, "softmax", [x], y, "x[:, 1:]", 2 * y.numel() * y.element_size(), lambda: torch.softmax(x, -1))


def reduced(b, dtype, rows, n, case):
    """logsumexp of rows that are not plain. The bytes are those that they need."""
    x, lse = elements(rows, n, dtype), torch.empty(rows, device="cuda")
    if case == "axis 0":
        x = x.view(n, rows)
        return run(b, "logsumexp", [x], lse, case, x.numel() * x.element_size(), lambda: torch.logsumexp(x, 0),
                   (rows, n), axis=0)
    given, need = hidden(x, case)
    run(b, "logsumexp", [x], lse, case, need, **given)


def reduced_outer(b, dtype, batch, n, inner):
    x = torch.randn(batch, n, inner, device="cuda").mul_(3).to(dtype)
    lse = torch.empty(batch, inner, device="cuda")
    run(b, "logsumexp", [x], lse, "axis 1", x.numel() * x.element_size(), lambda: torch.logsumexp(x, 1), axis=1)


def two_outer_axes(b, op, dtype, batch, rows, n):
    """A slice of which the rows of each index are one stride apart, but not all of them."""
    x = torch.randn(batch, rows + 8, n, device="cuda").to(dtype)[:, :rows]
    shape = (batch, rows) if op == "logsumexp" else (batch, rows, n)
    out = torch.empty(shape, device="cuda", dtype=torch.float32 if op == "logsumexp" else dtype)
    peer = (lambda: torch.logsumexp(x, -1)) if op == "logsumexp" else (lambda: torch.softmax(x, -1))
    run(b, op, [x], out, "x[:, :-8]", (1 if op == "logsumexp" else 2) * x.numel() * x.element_size(), peer)


def from_states(b, dtype, shape, axis, op):
    """What needs a row's state alone: one read, one write."""
    x = torch.randn(shape, device="cuda").mul_(3).to(dtype)
    rows = shape[:axis] + shape[axis + 1:]
    y, states = torch.empty_like(x), torch.empty(*rows, 4, dtype=torch.float64, device="cuda")
    torch.cuda.synchronize()
    b.softfold.plan("state", [x], states, b.stream, axis=axis)()
    b.stream.synchronize()  # its workspace is free for others now
    more = [torch.randn(rows, device="cuda")] if op == "logsumexp_backward" else []
    run(b, op, [x, states, *more], y, "axis 1" if len(shape) == 3 else "", 2 * x.numel() * x.element_size(), axis=axis)


def torch_gradient(dy, y, axis, dtype, out):
    return lambda: torch.ops.aten._softmax_backward_data.out(dy, y, axis, dtype, grad_input=torch.empty_like(out))


def backward_outer(b, dtype, batch, n, inner):
    y = torch.softmax(torch.randn(batch, n, inner, device="cuda") * 3, 1).to(dtype)
    dy, dx = torch.randn_like(y), torch.empty_like(y)
    run(b, "softmax_backward", [y, dy], dx, "axis 1", 3 * y.numel() * y.element_size(),
        torch_gradient(dy, y, 1, dtype, dx), axis=1)


def backward_narrowed(b, dtype, rows, n):
    """Of softmax of 16-bit elements in float32: y and dy float32, dx as the elements."""
    y = torch.softmax(elements(rows, n, torch.float32), -1)
    dy, dx = torch.randn_like(y), torch.empty(rows, n, device="cuda", dtype=dtype)
    run(b, "softmax_backward", [y, dy], dx, "dx in " + str(dtype).split(".")[-1], y.numel() * (8 + dx.element_size()),
        torch_gradient(dy, y, -1, dtype, dx))


def backward_sliced(b, dtype, rows, n):
    """dy lies differently to 16 bytes than y and dx."""
    y = torch.softmax(elements(rows, n, torch.float32), -1).to(dtype)
    dy, dx = elements(rows, n + 1, dtype)[:, 1:], torch.empty_like(y)
    run(b, "softmax_backward", [y, dy], dx, "dy[:, 1:]", 3 * y.numel() * y.element_size(),
        torch_gradient(dy, y, -1, dtype, dx))


def measure(b):
    for n in (8, 12, 16, 28, 32, 64, 128, 160, 250, 256, 500, 1000, 1024, 4096, 16384, 32768, 50257, 128256, 151936, 262144):
        widened(b, torch.bfloat16, (1 << 27) // n, n)
    for n in (8, 64, 128, 1000, 4096, 32768):
        for case in ("mask", "length"):
            widened(b, torch.bfloat16, (1 << 27) // n, n, case)
    for n in (8, 64, 1000, 4096, 12000, 32768):
        narrowed(b, torch.bfloat16, (1 << 26) // n, n)
    for n in (64, 128, 1000, 8192, 32000):
        backward_narrowed(b, torch.bfloat16, (1 << 27) // n, n)
    for dtype in (torch.float32, torch.bfloat16):
        half = (1 << 28) // torch.empty((), dtype=dtype).element_size()  # elements of 256 MB
        for n in (8, 20, 50, 64, 80, 100, 200, 300, 500):
            masked(b, dtype, half // n, n)
        for n in (2500, 5000, 12000, 32768):
            masked(b, dtype, half // n, n, "log_softmax")
        for n in (8, 64, 128, 1000, 4096, 12000, 32768):
            sliced(b, dtype, half // n, n)
        for n in (128, 1000, 4096, 32768):
            backward_sliced(b, dtype, half // n, n)
            for case in ("mask", "length"):
                reduced(b, dtype, half // n, n, case)
        for n in (8, 50, 100):
            reduced(b, dtype, half // n, n, "mask")
        for n in (64, 1000, 4096):
            reduced(b, dtype, half // n, n, "axis 0")
        for n in (64, 1024, 32768):
            from_states(b, dtype, (half // n, n), 1, "logsumexp_backward")
            from_states(b, dtype, (half // n, n), 1, "finish_softmax")
        for n in (1000, 2048, 32768):
            for op in ("softmax", "logsumexp"):
                two_outer_axes(b, op, dtype, 2, half // 2 // n, n)
                two_outer_axes(b, op, dtype, 16, half // 16 // n, n)
        for batch, n, inner in ((8, 21, 1 << 18), (16, 64, 1 << 16), (32, 512, 4096), (1, 1000, 1 << 16),
                                (16, 2048, 2048), (2, 16384, 2048)):
            backward_outer(b, dtype, batch, n, inner)
            reduced_outer(b, dtype, 2 * batch, n, inner)
        for op in ("logsumexp_backward", "finish_softmax", "finish_log_softmax"):
            from_states(b, dtype, (32, 512, 4096), 1, op)
        for batch, n, inner in ((2048, 64, 14 * 14), (128, 512, 1000), (2048, 512, 7 * 7), (64, 2048, 261), (8, 8192, 1024),
                                (8, 8192, 1023)):
            backward_outer(b, dtype, batch, n, inner)
        twice = 4 // torch.empty((), dtype=dtype).element_size()
        for batch, n, inner in ((8, 21, 513 * 513), (64, 64, 65 * 65), (2048, 512, 7 * 7), (512, 512, 14 * 14),
                                (1024, 1024, 7 * 7), (64, 2048, 261)):  # rows do not lie on 16 bytes
            b.outer_axis(dtype, twice * batch, n, inner)
        for batch, n, inner in ((8, 8192, 1023), (1, 65536, 1024), (1, 65536, 1023)):  # longer than a cluster holds
            b.outer_axis(dtype, twice * batch, n, inner)
