"""`CompileOptions`, the modes, and every environment variable: read and validated here only."""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import torch

from tpu_compile.buckets import BucketPolicy
from tpu_compile.errors import OptionError

DimensionBuckets = Literal["auto", "pow2", "exact"] | int | tuple[int, ...] | BucketPolicy
Buckets = DimensionBuckets | Mapping[str, DimensionBuckets]

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_FALLBACKS = ("eager", "error")
_BUCKETS = ("auto", "pow2", "exact")
_PRECISIONS = ("default", "high", "highest")

CACHE_DIR_VARIABLE = "TPU_COMPILE_CACHE_DIR"
CACHE_SIZE_VARIABLE = "TPU_COMPILE_CACHE_SIZE"
CACHE_VERIFY_VARIABLE = "TPU_COMPILE_CACHE_VERIFY"
PLATFORM_VARIABLE = "TPU_COMPILE_PLATFORM"

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE | re.ASCII)
_LOCAL_PREFIX = "file://"
_SIZE_WANTED = 'a positive number of bytes, or a text such as "500MiB" or "2GiB"'
_SWITCH = {"": None, "0": False, "1": True}


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """The options of one `torch.compile(..., backend="tpu", options={...})`.

    Compared by value; unknown names and bad values raise `OptionError` before any work.

    >>> CompileOptions(fallback="error").fallback
    'error'
    """

    fallback: str = "eager"
    """`"eager"`: an op without a lowering runs in eager PyTorch between compiled parts, counted
    and warned about once per op. `"error"`: it raises `UnsupportedOpError`. Since 0.1."""

    buckets: Buckets = "auto"
    """Sizes to which a dynamic dimension is padded: `"auto"`, `"pow2"`, `"exact"`, an int (its
    multiples), a list of sizes, or a `BucketPolicy`. A mapping from the name of a dimension to
    any of these, with `"*"` for the rest, sets them one by one. Since 0.1."""

    max_padding: float | None = None
    """Largest share, between 0 and 1, of a bucket's elements that may be padding under `"auto"`;
    None is 0.5. Since 0.1."""

    poison_padding: bool = False
    """Fill padding with NaN, the largest integer or True at each call: a debugging aid, to prove
    that none of it shows. Since 0.1."""

    matmul_precision: str | None = None
    """`"default"`, `"high"` or `"highest"` precision of float32 contractions; None follows
    `torch.get_float32_matmul_precision()`. Part of the program, hence of the cache key. Since
    0.1."""

    donate: bool = True
    """Donate the device buffers of inputs that the graph mutates to their new values. Part of
    the program. Since 0.1."""

    async_compile: bool = False
    """Compile in the background: until XLA has the program of a graph (or of a bucket), calls of it
    run op by op in eager PyTorch, counted in `stats().eager_calls`. Graphs that draw random numbers
    wait, as eager PyTorch would draw others. `tpu_compile.wait_for_compiles()` waits for all. What
    XLA refuses is raised by the first call after that. Since 0.1."""

    cache_dir: str | None = None
    """Folder of the persistent cache of compiled programs, or a URL such as `"gs://bucket/x"` (with
    the extra `remote`); None follows the environment variable `TPU_COMPILE_CACHE_DIR`, and without
    it the cache is off. A folder that other users can write to is not used. Since 0.1."""

    cache_size: int | str | None = None
    """Bytes that the persistent cache may take, or a text such as `"2GiB"`; the least recently used
    programs go before another is stored. None follows `TPU_COMPILE_CACHE_SIZE`; without it a folder
    may take 10 GiB, and a URL has no bound. No part of the cache key. Since 0.1."""

    cache_verify: bool | None = None
    """Compile what the persistent cache holds all the same, and compare: the optimized HLO without
    metadata, and the sizes of its buffers. Machine code is not compared: XLA makes other code of
    the same HLO each time. A difference warns, counts in `stats().cache_mismatches` and replaces
    what is stored; the program that was compiled runs. None follows `TPU_COMPILE_CACHE_VERIFY` (0
    or 1), and without it is False. No part of the cache key. Since 0.1."""

    xla_options: Mapping[str, bool | int | float | str] = dataclasses.field(default_factory=dict)
    """XLA compile options by name, such as `{"xla_cpu_enable_fast_math": True}`. Part of the
    cache key; XLA names the ones that it does not know. Since 0.1."""

    def __post_init__(self) -> None:
        _one_of("fallback", self.fallback, _FALLBACKS)
        object.__setattr__(self, "buckets", _checked_buckets(self.buckets))
        if self.matmul_precision is not None:
            _one_of("matmul_precision", self.matmul_precision, _PRECISIONS)
        for name in ("poison_padding", "donate", "async_compile"):
            if not isinstance(getattr(self, name), bool):
                raise _bad_value(name, getattr(self, name), "True or False")
        if self.max_padding is not None and not (
            isinstance(self.max_padding, (int, float))
            and not isinstance(self.max_padding, bool)
            and 0 <= self.max_padding <= 1
        ):
            raise _bad_value("max_padding", self.max_padding, "a number between 0 and 1")
        if self.cache_dir is not None:
            if not isinstance(self.cache_dir, (str, os.PathLike)):
                raise _bad_value("cache_dir", self.cache_dir, "a path or None")
            folder = os.fspath(self.cache_dir)
            if not isinstance(folder, str) or "\0" in folder:
                raise _bad_value("cache_dir", folder, "a path or None")
            object.__setattr__(self, "cache_dir", folder)
            _check_location(folder, "the option `cache_dir`")
        if self.cache_size is not None:
            object.__setattr__(self, "cache_size", _checked_size(self.cache_size))
        if self.cache_verify is not None and not isinstance(self.cache_verify, bool):
            raise _bad_value("cache_verify", self.cache_verify, "True, False or None")
        object.__setattr__(self, "xla_options", _checked_xla_options(self.xla_options))

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        # Neither pickle nor deepcopy takes a read-only view.
        for name in ("buckets", "xla_options"):
            if isinstance(fields[name], Mapping):
                fields[name] = dict(fields[name])
        return _rebuilt, (fields,)

    def __hash__(self) -> int:
        buckets = self.buckets
        # A user's policy may have no hash: its type will do, and equality decides.
        comparable = buckets if isinstance(buckets, (str, int, tuple)) else type(buckets)
        return hash((self.fallback, comparable, self.matmul_precision, self.donate))

    def resolved_precision(self) -> str:
        """Return the matmul precision in force now (torch's setting where ours is None)."""
        if self.matmul_precision is not None:
            return self.matmul_precision
        return {"medium": "default", "high": "high", "highest": "highest"}[
            torch.get_float32_matmul_precision()
        ]

    def resolved_cache_dir(self) -> str | None:
        """Return the persistent cache's folder or URL: the option, or else the environment's.

        Raises:
            OptionError: the environment names a URL, and fsspec is not installed.
        """
        named = self.cache_dir
        if not named:
            named = os.environ.get(CACHE_DIR_VARIABLE) or None
            if named is not None:
                _check_location(named, CACHE_DIR_VARIABLE)
        return named and os.path.expanduser(named.removeprefix(_LOCAL_PREFIX))

    def resolved_cache_size(self) -> int | None:
        """Return how many bytes the persistent cache may take; None if nothing says so.

        Raises:
            OptionError: the environment's value is no size.
        """
        if isinstance(self.cache_size, int):
            return self.cache_size
        text = os.environ.get(CACHE_SIZE_VARIABLE)
        if not text:
            return None
        try:
            return parse_size(text)
        except ValueError as error:
            raise _bad_variable(CACHE_SIZE_VARIABLE, text, _SIZE_WANTED) from error

    def resolved_cache_verify(self) -> bool:
        """Return whether what the persistent cache holds is compiled all the same.

        Raises:
            OptionError: the environment's value is neither 0 nor 1.
        """
        if self.cache_verify is not None:
            return self.cache_verify
        text = os.environ.get(CACHE_VERIFY_VARIABLE, "")
        if text not in _SWITCH:
            raise _bad_variable(CACHE_VERIFY_VARIABLE, text, "0 or 1")
        return _SWITCH[text] or False


def _rebuilt(fields: dict[str, Any]) -> CompileOptions:
    return CompileOptions(**fields)


def from_torch_compile(
    mode: str | None, options: Mapping[str, Any] | CompileOptions | None
) -> CompileOptions:
    """Return the validated options of a `torch.compile` call.

    The modes are Inductor's; our graphs have no such modes, so they are accepted as no-ops.

    Raises:
        OptionError: an unknown mode or option name, or a bad value.
    """
    if mode is not None and mode not in MODES:
        raise OptionError(
            f"The mode {mode!r} is not known to the tpu backend",
            why=nearest(mode, MODES),
            ways_out=("leave `mode` out",),
        )
    if isinstance(options, CompileOptions):
        return options
    known = [field.name for field in dataclasses.fields(CompileOptions)]
    for name in options or {}:
        if name not in known:
            raise OptionError(
                f"The option {name!r} is not known to the tpu backend",
                why=nearest(str(name), known),
                ways_out=("see tpu_compile.CompileOptions",),
            )
    return CompileOptions(**(options or {}))


def platform_from_environment() -> str | None:
    """Return the platform that `TPU_COMPILE_PLATFORM` names, or None."""
    return os.environ.get(PLATFORM_VARIABLE) or None


def parse_size(text: str) -> int:
    """Return a size in bytes; units are powers of 1024 with and without the i.

    >>> parse_size("2GiB")
    2147483648

    Raises:
        ValueError: the text is no size, or 0.
    """
    match = _SIZE.fullmatch(text.strip())
    size = int(float(match[1]) * 1024 ** "_KMGT".index(match[2].upper() or "_")) if match else 0
    if size == 0:
        raise ValueError(f"{text!r} is no size, such as 500MiB or 2GiB")
    return size


def _checked_size(size: Any) -> int:
    if isinstance(size, str):
        try:
            return parse_size(size)
        except ValueError as error:
            raise _bad_value("cache_size", size, _SIZE_WANTED) from error
    if not isinstance(size, int) or isinstance(size, bool) or size <= 0:
        raise _bad_value("cache_size", size, _SIZE_WANTED)
    return size


def _check_location(location: str, named_by: str) -> None:
    """Raise `OptionError` if a URL needs fsspec and it is not installed; imports nothing."""
    is_remote = "://" in location and not location.startswith(_LOCAL_PREFIX)
    if is_remote and importlib.util.find_spec("fsspec") is None:
        raise OptionError(
            f"The persistent cache {location!r} (from {named_by}) needs fsspec",
            why="a URL is reached through it, and it is not installed",
            ways_out=("pip install tpu_compile[remote]", "a local folder"),
        )


def _bad_variable(name: str, value: str, wanted: str) -> OptionError:
    return OptionError(f"The environment variable {name} is {value!r}", why=f"it takes {wanted}")


def _one_of(name: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise _bad_value(name, value, " or ".join(repr(item) for item in allowed))


def _bad_value(name: str, value: object, wanted: str) -> OptionError:
    return OptionError(f"The option `{name}` is {value!r}", why=f"it takes {wanted}")


def _checked_buckets(buckets: Any) -> Buckets:
    if isinstance(buckets, Mapping):
        if not buckets or not all(isinstance(name, str) and name for name in buckets):
            raise _bad_value("buckets", dict(buckets), 'the names of dimensions, or "*", as keys')
        return MappingProxyType(
            {name: _checked_dimension_buckets(buckets[name], name) for name in sorted(buckets)}
        )
    return _checked_dimension_buckets(buckets)


def _checked_dimension_buckets(buckets: Any, name: str | None = None) -> DimensionBuckets:
    if isinstance(buckets, str) and buckets in _BUCKETS:
        return buckets  # type: ignore[return-value]
    if isinstance(buckets, int) and not isinstance(buckets, bool) and buckets > 0:
        return buckets
    if isinstance(buckets, (list, tuple)) and buckets:
        sizes = tuple(buckets)
        if all(isinstance(s, int) and not isinstance(s, bool) and s > 0 for s in sizes):
            return tuple(sorted(set(sizes)))
    if _is_policy(buckets):
        return buckets
    wanted = (
        '"auto", "pow2", "exact", a positive int, a list of positive ints, or a policy (an object '
        "with a method `bucket` and a bool `weighs_cost`)"
    )
    if name is None:
        raise _bad_value("buckets", buckets, f"{wanted}; or a mapping from dimension names to such")
    raise _bad_value(f'buckets["{name}"]', buckets, wanted)


def _is_policy(value: Any) -> bool:
    return (
        not isinstance(value, type)
        and callable(getattr(value, "bucket", None))
        and isinstance(getattr(value, "weighs_cost", None), bool)
    )


def _checked_xla_options(options: Any) -> Mapping[str, bool | int | float | str]:
    if not isinstance(options, Mapping):
        raise _bad_value("xla_options", options, "a dictionary from flag name to value")
    for name, value in options.items():
        if not isinstance(name, str) or not isinstance(value, (bool, int, float, str)):
            raise _bad_value(
                "xla_options", {name: value}, "flag names, each with a bool, a number or a string"
            )
    return MappingProxyType(dict(sorted(options.items())))


def nearest(name: str, known: Sequence[str]) -> str:
    """Return which of `known` names is nearest to `name`, and all of them."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    listed = ", ".join(repr(item) for item in known)
    return f"did you mean {close[0]!r}? Known: {listed}" if close else f"known: {listed}"
