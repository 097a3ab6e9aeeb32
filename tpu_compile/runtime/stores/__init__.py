"""Where compiled programs are kept between processes: local folders, and folders behind a URL.

A store knows files by name and when they were used, and nothing of what is in them: that is
`stored_programs.py`.
"""

from __future__ import annotations

import functools

from tpu_compile.runtime.stores.base import (
    ProgramStore,
    StoredFile,
    StoreError,
    TooLargeError,
    UnsafeStoreError,
)
from tpu_compile.runtime.stores.local import DEFAULT_SIZE, LocalStore, why_unsafe

__all__ = [
    "DEFAULT_SIZE",
    "LocalStore",
    "ProgramStore",
    "StoreError",
    "StoredFile",
    "TooLargeError",
    "UnsafeStoreError",
    "is_url",
    "store_at",
    "why_unsafe",
]


def is_url(location: str) -> bool:
    """Whether a location is reached through fsspec."""
    return "://" in location


@functools.lru_cache(maxsize=32)
def store_at(location: str, size: int | None = None) -> ProgramStore:
    """Return the store at a path or URL, bounded by `size` bytes.

    Without a size, a local folder is bounded by `DEFAULT_SIZE`, and a remote one is not bounded.

    Raises:
        OptionError: the URL names no file system that fsspec knows, or its package is missing.
    """
    if is_url(location):
        # fsspec and its drivers are imported where they are used, and only there.
        from tpu_compile.runtime.stores.remote import RemoteStore

        return RemoteStore(location, size)
    return LocalStore(location, DEFAULT_SIZE if size is None else size)
