"""PJRT for everyone else: clients, arrays, executables, plugins, compilers for absent chips.

jaxlib promises no stable interface for its run time; `bindings` alone imports it.
"""

from tpu_compile.runtime.pjrt.client import (
    DTYPES,
    RUNTIME_ERRORS,
    Client,
    Put,
    execute,
    open_client,
)
from tpu_compile.runtime.pjrt.compile_only import (
    CompileOnlyClient,
    OutOfMemoryError,
    UnknownTopologyError,
    open_compile_only,
)
from tpu_compile.runtime.pjrt.plugins import (
    PluginMissingError,
    plugin_names,
    plugin_path,
    tpu_is_attached,
)

__all__ = [
    "DTYPES",
    "RUNTIME_ERRORS",
    "Client",
    "CompileOnlyClient",
    "OutOfMemoryError",
    "PluginMissingError",
    "Put",
    "UnknownTopologyError",
    "execute",
    "open_client",
    "open_compile_only",
    "plugin_names",
    "plugin_path",
    "tpu_is_attached",
]
