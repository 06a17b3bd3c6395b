"""softfold's one family of exceptions: what was given, what is allowed, and the nearest fix."""

from __future__ import annotations

import difflib
import functools
import inspect
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


def integer(name: str, value) -> int:
    """An integer, or what stands for one."""
    try:
        return operator.index(value)
    except TypeError:
        raise DTypeError("dtype", f"{name}={value!r}", "a whole number") from None


def whole(name: str, value, lowest: int = -(2**63), highest: int = 2**63 - 1) -> int:
    """An integer, or what stands for one, in [lowest, highest]: nothing is taken modulo."""
    value = integer(name, value)
    if not lowest <= value <= highest:
        fix = f"{name}={value % (highest + 1)}" if lowest == 0 else ""
        raise Error("option", f"{name}={value}", f"a whole number, {lowest} .. {highest}", fix)
    return value


# Keywords of other libraries.
_ELSEWHERE = {"dim": "axis={}", "keepdim": "keepdims={}", "temperature": "scale=1/{}", "where": "mask={}"}
_ARRAYS = ("a", "array", "input", "logits", "scores", "tensor", "x")  # what others call the first argument


def refuse_call(name: str, parameters: str, given: tuple, keywords: dict):
    """Raises what is wrong with a call that a function's signature does not take; called by softfold._core."""
    known = [p.partition("=")[0] for p in parameters.split(", ") if p != "*"]
    needed = [p for p in parameters.partition("*")[0].split(", ") if p and "=" not in p]
    for word, value in keywords.items():
        if word in known:
            continue
        near = [needed[0]] if word in _ARRAYS and needed else difflib.get_close_matches(word, known, 1)
        fix = _ELSEWHERE.get(word, near[0] + "={}" if near else "")
        shown = repr(value) if isinstance(value, (int, float, str, tuple)) else "..."
        fix = fix.format(shown) if fix.partition("=")[0] in known else f"leave it out, or see help(softfold.{name})"
        raise UsageError("usage", f"the keyword {word} for {name}", ", ".join(known), fix)
    for parameter, value in (dict.fromkeys(needed) | dict(zip(known, given)) | keywords).items():
        if parameter in needed and value is None:
            what = "a whole number" if parameter in ("k", "offset", "size") else "an array"
            raise UsageError("usage", f"no {parameter} for {name}", what, f"softfold.{name}({', '.join(needed)})")
    raise UsageError("usage", f"other arguments than {name} takes", f"{name}({parameters})", f"help(softfold.{name})")


def _written(signature) -> str:
    """A signature's parameters, without a comma and a space in what one is by default."""
    parameters = []
    for p in signature.parameters.values():
        if p.kind is p.KEYWORD_ONLY and "*" not in parameters:
            parameters.append("*")
        parameters.append(p.name if p.default is p.empty else f"{p.name}={p.default!r}".replace(", ", ","))
    return ", ".join(parameters)


def _takes(signature, given: tuple, keywords: dict) -> bool:
    """Whether it takes them, and nothing that it needs is None."""
    try:
        bound = signature.bind(*given, **keywords).arguments
    except TypeError:
        return False
    needed = [name for name, p in signature.parameters.items() if p.default is p.empty]
    return all(bound[name] is not None for name in needed)


def refusing(function):
    """The function, of which calls that its signature does not take are refused in softfold's words."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*given, **keywords):
        try:
            return function(*given, **keywords)
        except TypeError as error:
            if isinstance(error, Error) or _takes(signature, given, keywords):
                raise
        refuse_call(function.__name__, _written(signature), given, keywords)

    return call


_CLASSES = {"dtype": DTypeError, "unsupported": UnsupportedError, "state": StateError, "usage": UsageError}


def make(code: int, got: str, allowed: str, fix: str) -> Error:
    """The exception for a softfold::Error; called by softfold._core."""
    name = _CODES[code]
    return _CLASSES.get(name, Error)(name, got, allowed, fix)
