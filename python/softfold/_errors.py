"""softfold's one family of exceptions: what was given, what is allowed, and the nearest fix."""

from __future__ import annotations

import operator

__all__ = ["DTypeError", "Error", "StateError", "UnsupportedError"]

_CODES = (
    "ok", "internal", "usage", "dtype", "shape", "strides", "option", "unsupported", "state", "file", "io",
    "out_of_memory", "device", "data", "verification",
)  # fmt: skip


class Error(ValueError):
    """A call that softfold refused, before any work.

    code: "dtype", "shape", "strides", "option", "unsupported", "state", "device", "data", ...;
    got, allowed, fix: the parts of the message; fix may be empty.
    """

    def __init__(self, code: str, got: str, allowed: str, fix: str = ""):
        super().__init__(f"softfold: got {got}; allowed: {allowed}" + (f"; try: {fix}" if fix else ""))
        self.code, self.got, self.allowed, self.fix = code, got, allowed, fix

    def __reduce__(self):
        return type(self), (self.code, self.got, self.allowed, self.fix)


class DTypeError(Error, TypeError):
    """A dtype, or a kind of object, that the operation does not take. Also a TypeError."""


class UnsupportedError(Error, NotImplementedError):
    """An operation, option or device that this build does not have. Also a NotImplementedError."""


class StateError(Error):
    """States or partials that do not belong together: another scale, precision or offset."""


def whole(name: str, value, lowest: int = -(2**63), highest: int = 2**63 - 1) -> int:
    """An integer, or what stands for one, in [lowest, highest]: nothing is taken modulo."""
    value = operator.index(value)
    if not lowest <= value <= highest:
        fix = f"{name}={value % (highest + 1)}" if lowest == 0 else ""
        raise Error("option", f"{name}={value}", f"a whole number, {lowest} .. {highest}", fix)
    return value


_CLASSES = {"dtype": DTypeError, "unsupported": UnsupportedError, "state": StateError}


def make(code: int, got: str, allowed: str, fix: str) -> Error:
    """The exception for a softfold::Error; called by softfold._core."""
    name = _CODES[code]
    return _CLASSES.get(name, Error)(name, got, allowed, fix)
