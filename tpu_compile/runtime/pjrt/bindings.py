"""The only module that imports jaxlib's run time. It imports no jax."""

import jaxlib
from jaxlib import _jax, lapack  # type: ignore[attr-defined]
from jaxlib import xla_client as xc
from jaxlib._hlo import HloPrintOptions  # type: ignore[import-not-found]

JAXLIB_VERSION = jaxlib.__version__

__all__ = ["JAXLIB_VERSION", "HloPrintOptions", "_jax", "lapack", "xc"]
