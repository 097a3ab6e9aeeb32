"""What makes a program of fixed sizes again in another process, without its graph."""

from __future__ import annotations

import dataclasses
import zlib
from dataclasses import dataclass

from tpu_compile.errors import DeviceError
from tpu_compile.history import GraphName
from tpu_compile.interface import Interface
from tpu_compile.loading import find
from tpu_compile.options import CompileOptions
from tpu_compile.program import Program
from tpu_compile.runtime.pjrt import Client


@dataclass(frozen=True)
class Recipe:
    """A module and how to call it; can be pickled."""

    module: bytes | None
    """The module's canonical text, compressed; None where there is nothing to compute."""
    interface: Interface
    name: GraphName
    options: CompileOptions
    versions_ahead: frozenset[int]
    platform: str
    """What the module was lowered for."""

    @staticmethod
    def of(
        text: str | None,
        interface: Interface,
        name: GraphName,
        options: CompileOptions,
        versions_ahead: frozenset[int],
        platform: str,
    ) -> Recipe:
        """Return the recipe of the module with the canonical text `text`."""
        # Where this process keeps programs is not for another one to know.
        options = dataclasses.replace(options, cache_dir=None, cache_size=None, cache_verify=None)
        module = None if text is None else zlib.compress(text.encode(), 1)
        return Recipe(module, interface, name, options, versions_ahead, platform)

    def program(self, client: Client, caches: CompileOptions) -> Program:
        """Return the program, from a cache or compiled.

        `caches` says where programs are kept here, and how far they are trusted.

        Raises:
            DeviceError: it is for another platform than `client`'s.
            CompilationError: XLA refuses the module.
        """
        if client.platform != self.platform:
            raise DeviceError(
                f"The stored program of {self.name} is for the platform {self.platform!r}",
                where=self.name.where,
                why=f"the current platform is {client.platform!r}",
                ways_out=(f"tpu_compile.set_platform({self.platform!r})", "compile it anew"),
            )
        executable = None
        if self.module is not None:
            text = zlib.decompress(self.module).decode()
            options = dataclasses.replace(
                self.options,
                cache_dir=caches.cache_dir,
                cache_size=caches.cache_size,
                cache_verify=caches.cache_verify,
            )
            executable = find(
                text, text.encode, self.interface, self.name, options, client
            ).executable
        return Program(self.interface, client, executable, self.name, self.versions_ahead)
