"""StableHLO's reference interpreter, asked in a process of its own.

It ends its process at an op that it does not know (CHLO, custom calls), and it can be slow: neither
must end the tool.
"""

from __future__ import annotations

import os
import pickle
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch

import lowering
from lowering import LoweredGraph
from lowering.mlir import module_bytecode


class NoAnswerError(Exception):
    """The interpreter gave no result; the text says why."""


class Interpreter:
    """Runs modules one by one; starts its process when it is first asked."""

    def __init__(self, seconds: float = 60.0) -> None:
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Interpreter:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def run(self, lowered: LoweredGraph, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the results of a module, in the memory order that its signature says.

        Args:
            lowered: a graph without random numbers.
            arguments: contiguous tensors, as the module takes them.

        Raises:
            NoAnswerError: the interpreter does not know an op, or takes too long.
        """
        with lowered.module.context:
            module = module_bytecode(lowered.module)
        # Copies, because what is pickled of a tensor is its whole storage.
        question = (module, [argument.detach().clone() for argument in arguments])
        arrays = self._asked(pickle.dumps(question))
        return [
            torch.from_numpy(array).to(result.spec.dtype).reshape(result.physical.shape)
            for array, result in zip(arrays, lowered.signature.results, strict=True)
        ]

    def _asked(self, question: bytes) -> list[Any]:
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(question)
            process.stdin.flush()
            if not select.select([process.stdout], [], [], self._seconds)[0]:
                self._stop()
                raise NoAnswerError(f"the interpreter took more than {self._seconds:.0f} s")
            answer = pickle.load(process.stdout)
        except (BrokenPipeError, EOFError, pickle.UnpicklingError) as error:
            self._stop()
            raise NoAnswerError("the interpreter does not know an op of the program") from error
        if isinstance(answer, str):
            raise NoAnswerError(f"the interpreter refused the program: {answer}")
        return list(answer)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            root = str(Path(lowering.__file__).parent.parent)
            path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # A fatal error of LLVM comes with a stack trace that helps nobody.
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
            )
        return self._process

    def _stop(self) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def _answer(module: bytes, arguments: Sequence[torch.Tensor]) -> Any:
    import numpy

    from lowering.hlo import dense_attribute
    from lowering.mlir import create_context, ir, stablehlo

    with create_context(), ir.Location.unknown():
        parsed = ir.Module.parse(module)
        operands = [dense_attribute(argument) for argument in arguments]
        try:
            results = stablehlo.eval_module(parsed, operands)
            return [numpy.array(item) for item in results]
        except (ValueError, TypeError, RuntimeError) as error:
            return " ".join(str(error).split())[:300]


def _serve(questions: BinaryIO, answers: BinaryIO) -> None:
    """Answer questions until there are no more."""
    while True:
        try:
            module, arguments = pickle.load(questions)
        except EOFError:
            return
        pickle.dump(_answer(module, arguments), answers)
        answers.flush()


if __name__ == "__main__":
    # Whatever prints must not print among the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _serve(sys.stdin.buffer, answers)
