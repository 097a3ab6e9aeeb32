"""Prints the seconds of one competitor's first call; `suites.first_call` runs it anew each time."""

from __future__ import annotations

import json
import os
import sys
import tempfile

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as empty:
        # A cold start: Inductor keeps its kernels on disk unless told to look elsewhere.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = empty
        from benchmarks.suites import time_first_call

        print(json.dumps(time_first_call(sys.argv[1], quick=sys.argv[2] == "1")))
