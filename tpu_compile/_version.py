"""The version of the distribution; the build reads it from here and nothing else states it."""

__version__ = "0.1.0.dev0"
