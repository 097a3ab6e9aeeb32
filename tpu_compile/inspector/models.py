"""MODEL on the command line: from `module:attribute` to what is called.

A model is a module or a function; one whose name ends in no example inputs of its own needs
`--input`. A factory is a function that, called without arguments, gives (callable, args) or
(callable, args, kwargs).
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from lowering.errors import TpuCompileError
from tpu_compile.ahead.fake import NEEDS_DATA
from tpu_compile.ahead.lowered import Lowered, lower_made
from tpu_compile.ahead.recording import Made
from tpu_compile.inspector.exits import ExitCode, InspectorError
from tpu_compile.inspector.inputs import DTYPES, InputSpec, parse_input
from tpu_compile.inspector.training import OPTIMIZERS, training_step

_RAISED = re.compile(r"with fake tensors: .*: got (\w+\(.*\))$", re.MULTILINE)
_DEFAULT_SIZES = {"batch": 1, "seq": 128}


@dataclass(frozen=True)
class Subject:
    """A model as the command line names it, and the sizes to call it with."""

    spec: str
    thing: Any = None
    """What `spec` names, imported; None for a model of transformers."""
    inputs: tuple[InputSpec, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    """What was asked for by name: `batch`, `seq` and others."""
    train: str | None = None
    """The optimizer of a training step: `"sgd"` or `"adamw"`; None for a plain call."""
    dtype: torch.dtype | None = None
    """What the parameters and the floating-point inputs are converted to."""

    def at(self, **sizes: int) -> Subject:
        """Return the same model at other sizes."""
        return dataclasses.replace(self, sizes={**self.sizes, **sizes})

    def make(self) -> Made:
        """Return what to call: a fresh model, under whatever tensor mode is in force.

        Raises:
            InspectorError: the model cannot be imported, found or built, or its inputs are wrong.
        """
        function, args, kwargs = self._built()
        if self.dtype is not None:
            if isinstance(function, torch.nn.Module) and function is not self.thing:
                function = function.to(self.dtype)
            args = [_converted(value, self.dtype) for value in args]
            kwargs = {name: _converted(value, self.dtype) for name, value in kwargs.items()}
        if self.train is not None:
            function = training_step(function, self.train)
        return function, args, kwargs

    def _built(self) -> Made:
        if self.spec.startswith("hf:"):
            from tpu_compile.inspector.hugging_face import build

            made = build(self.spec.removeprefix("hf:"), self.sizes)
            return (made[0], *self._inputs()) if self.inputs else made
        thing = self.thing
        if self.inputs:
            if inspect.isclass(thing):
                thing = _called(thing, self.spec, {})
            return (thing, *self._inputs())
        made = thing
        if not isinstance(thing, (tuple, list)):
            if isinstance(thing, torch.nn.Module):
                raise _needs_inputs(self.spec, "nothing says what to call it with")
            made = _called(thing, self.spec, self._factory_sizes(thing))
        if isinstance(made, torch.nn.Module):
            raise _needs_inputs(self.spec, "it gives a module, and nothing to call it with")
        return _checked(made, self.spec)

    def _inputs(self) -> tuple[list[Any], dict[str, Any]]:
        sizes = {**_DEFAULT_SIZES, **self.sizes}
        for one in self.inputs:
            for size in one.sizes:
                if isinstance(size, str) and size not in sizes:
                    raise InspectorError(
                        f"The input {one.text!r} has the size {size!r}, which nothing sets",
                        ExitCode.INPUT,
                        ways_out=(f"--size {size}=N",),
                    )
        tensors = [(one.name, one.tensor(sizes)) for one in self.inputs]
        args = [tensor for name, tensor in tensors if name is None]
        return args, {name: tensor for name, tensor in tensors if name is not None}

    def _factory_sizes(self, factory: Callable[..., Any]) -> dict[str, int]:
        """Return the asked sizes as keyword arguments of a factory, which has to take them."""
        try:
            parameters = inspect.signature(factory).parameters
        except (TypeError, ValueError):
            parameters = {}  # type: ignore[assignment]
        missing = [name for name in self.sizes if name not in parameters]
        if missing:
            raise InspectorError(
                f"{self.spec} takes no argument {missing[0]!r}",
                ExitCode.INPUT,
                why="sizes are passed to a factory by name",
                ways_out=(
                    f"def factory(*, {missing[0]}=1): ...",
                    "--input with a size of that name",
                ),
            )
        return dict(self.sizes)


def _converted(value: Any, dtype: torch.dtype) -> Any:
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(dtype) if is_float else value


def _needs_inputs(spec: str, why: str) -> InspectorError:
    return InspectorError(
        f"{spec} has no inputs",
        ExitCode.INPUT,
        why=why,
        ways_out=(
            "--input f32[8,128], once for each argument",
            "a factory that returns (callable, args, kwargs)",
        ),
    )


def _called(factory: Callable[..., Any], spec: str, sizes: Mapping[str, int]) -> Any:
    """Return what a factory gives; its own errors are the model's."""
    if not callable(factory):
        raise InspectorError(
            f"{spec} is a {type(factory).__name__}",
            ExitCode.MODEL,
            why="a model is a module, a function, or a factory of (callable, args, kwargs)",
        )
    try:
        required = [
            parameter.name
            for parameter in inspect.signature(factory).parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            and parameter.name not in sizes
        ]
    except (TypeError, ValueError):
        required = []
    if required:
        raise _needs_inputs(spec, f"it takes {', '.join(required)}")
    try:
        return factory(**sizes)
    except (TpuCompileError, *NEEDS_DATA):
        raise
    except Exception as error:
        raise InspectorError(
            f"{spec} failed when it was called",
            ExitCode.MODEL,
            why=f"{type(error).__name__}: {error}",
        ) from error


def _checked(made: Any, spec: str) -> Made:
    """Return (callable, args, kwargs) from what a factory gave."""
    fits = (
        isinstance(made, (tuple, list))
        and len(made) in (2, 3)
        and callable(made[0])
        and isinstance(made[1], (tuple, list))
        and (len(made) == 2 or isinstance(made[2], Mapping))
    )
    if not fits:
        raise InspectorError(
            f"{spec} gave {type(made).__name__}",
            ExitCode.MODEL,
            why="a factory gives (callable, args) or (callable, args, kwargs), args being a tuple",
            ways_out=("--input f32[8,128], once for each argument, to call it itself",),
        )
    return made[0], list(made[1]), dict(made[2]) if len(made) == 3 else {}


@contextlib.contextmanager
def model_errors(spec: str) -> Iterator[None]:
    """Make what a model raises when it is called an error of the model's, in one line.

    Raises:
        InspectorError: the block raised; our own errors pass as they are.
    """
    try:
        yield
    except TpuCompileError:
        raise
    except Exception as error:
        raise InspectorError(
            f"{spec} failed when it was called",
            ExitCode.MODEL,
            why=_cause(error),
            ways_out=("--traceback shows every frame",),
        ) from error


def _cause(error: BaseException) -> str:
    """Return in one line what went wrong first."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = str(error).strip()
    # Dynamo explains over many lines what it did with tensors when an op raised.
    raised = _RAISED.search(text)
    if raised is not None:
        return raised[1]
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"


# --- importing -----------------------------------------------------------------------------------


def _attribute(spec: str) -> Any:
    """Return what `module:attribute` or `file.py:attribute` names."""
    source, colon, path = spec.rpartition(":")
    if not colon or not source or not path:
        raise InspectorError(
            f"{spec!r} names no model",
            ExitCode.MODEL,
            ways_out=("package.module:attribute", "folder/file.py:attribute", "hf:MODEL_TYPE"),
        )
    thing: Any = _imported_file(source) if source.endswith(".py") else _imported_module(source)
    for name in path.split("."):
        try:
            thing = getattr(thing, name)
        except AttributeError as error:
            public = [found for found in vars(thing) if not found.startswith("_")]
            raise InspectorError(
                f"{source} has no attribute {name!r}",
                ExitCode.MODEL,
                why=f"it has {', '.join(public[:12]) or 'none'}",
            ) from error
    return thing


def _imported_module(name: str) -> ModuleType:
    # A console script has its own folder on the path; a user means the one they are in.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise _not_imported(name, error) from error


_files: dict[Path, ModuleType] = {}


def _imported_file(name: str) -> ModuleType:
    path = Path(name).resolve()
    if path in _files:
        return _files[path]
    if not path.is_file():
        raise InspectorError(f"There is no file {name}", ExitCode.MODEL)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InspectorError(f"{name} cannot be imported", ExitCode.MODEL)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _not_imported(name, error) from error
    _files[path] = module
    return module


def _not_imported(name: str, error: Exception) -> InspectorError:
    return InspectorError(
        f"{name} cannot be imported", ExitCode.MODEL, why=f"{type(error).__name__}: {error}"
    )


# --- arguments -----------------------------------------------------------------------------------


def lower_subject(subject: Subject, platform: str = "tpu") -> Lowered:
    """Return what one call of the model runs, lowered; nothing is computed.

    Raises:
        InspectorError: the model cannot be built, or fails when it is called.
        TpuCompileError: a graph cannot be captured or lowered.
    """
    with model_errors(subject.spec):
        return lower_made(subject.make, platform=platform)


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add MODEL and what says how it is called."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="module:attribute, file.py:attribute (a module, a function, or a factory of "
        "(callable, args, kwargs)), or hf:MODEL_TYPE",
    )
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="SPEC",
        help="an argument, such as f32[8,128]; by keyword: mask=b[batch,seq]",
    )
    parser.add_argument(
        "--size", action="append", default=[], metavar="NAME=N", help="a size by name"
    )
    parser.add_argument(
        "--train", nargs="?", const="adamw", choices=sorted(OPTIMIZERS), help="a training step"
    )
    parser.add_argument("--dtype", choices=("f32", "bf16", "f16"), help="of parameters and inputs")


def subject_of(arguments: argparse.Namespace) -> Subject:
    """Return the model that the arguments name.

    Raises:
        InspectorError: an input or a size is no such thing.
    """
    sizes = {}
    for text in arguments.size:
        name, _, value = text.partition("=")
        if not name.isidentifier() or not value.isdigit():
            raise InspectorError(
                f"--size {text!r} is no size", ExitCode.INPUT, ways_out=("--size seq=128",)
            )
        sizes[name] = int(value)
    dtype = DTYPES[arguments.dtype] if arguments.dtype else None
    inputs = tuple(map(parse_input, arguments.input))
    # Imported now: later on tensors are fake, and a module of the file's own would stay so.
    thing = None if arguments.model.startswith("hf:") else _attribute(arguments.model)
    if isinstance(thing, torch.nn.Module) and dtype is not None:
        thing = copy.deepcopy(thing).to(dtype)
    return Subject(arguments.model, thing, inputs, sizes, arguments.train, dtype)
