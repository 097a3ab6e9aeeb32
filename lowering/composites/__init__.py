"""Our own decompositions: functional torch code for ops that torch's tables leave whole.

Each module here is imported for its registrations; a new family is a new file.
"""

from __future__ import annotations

import importlib
import pkgutil

for _module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
    importlib.import_module(f"{__name__}.{_module.name}")
