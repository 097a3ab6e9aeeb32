"""The version of both packages."""

__version__ = "0.1.0.dev0"
