"""`python -m tpu_compile.inspector` is `tpu-compile-inspect`."""

from __future__ import annotations

import sys

from tpu_compile.inspector.cli import main

if __name__ == "__main__":
    sys.exit(main())
