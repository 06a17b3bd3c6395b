"""softfold's one family of exceptions: what was given, what is allowed, and the nearest fix."""

from __future__ import annotations

import difflib
import operator

__all__ = ["DTypeError", "Error", "StateError", "UnsupportedError", "UsageError"]

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


class UsageError(Error, TypeError):
    """A call with a keyword that there is not, or without an argument that there must be. Also a TypeError."""


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


_ELSEWHERE = {"dim": "axis={}", "keepdim": "keepdims={}", "temperature": "scale=1/{}"}  # keywords of other libraries


def refuse_call(name: str, parameters: str, given: tuple, keywords: dict):
    """Raises what is wrong with a call that a function's signature does not take; called by softfold._core."""
    known = [p.partition("=")[0] for p in parameters.split(", ") if p != "*"]
    for word, value in keywords.items():
        if word in known:
            continue
        near = difflib.get_close_matches(word, known, 1)
        fix = _ELSEWHERE.get(word, near[0] + "={}" if near else "")
        shown = repr(value) if isinstance(value, (int, float, str, tuple)) else "..."
        fix = fix.format(shown) if fix.partition("=")[0] in known else f"leave it out, or see help(softfold.{name})"
        raise UsageError("usage", f"the keyword {word} for {name}", ", ".join(known), fix)
    needed = [p for p in parameters.partition("*")[0].split(", ") if p and "=" not in p]
    for parameter, value in (dict.fromkeys(needed) | dict(zip(known, given)) | keywords).items():
        if parameter in needed and value is None:
            raise UsageError("usage", f"no {parameter} for {name}", "an array",
                             f"softfold.{name}({', '.join(needed)})")  # fmt: skip
    raise UsageError("usage", f"other arguments than {name} takes", f"{name}({parameters})", f"help(softfold.{name})")


_CLASSES = {"dtype": DTypeError, "unsupported": UnsupportedError, "state": StateError, "usage": UsageError}


def make(code: int, got: str, allowed: str, fix: str) -> Error:
    """The exception for a softfold::Error; called by softfold._core."""
    name = _CODES[code]
    return _CLASSES.get(name, Error)(name, got, allowed, fix)
