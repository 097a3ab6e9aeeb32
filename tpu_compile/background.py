"""Compiles that no call waits for, and how calls are answered in the meantime."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import torch
from torch import fx

from tpu_compile.statistics import RECORDER

T = TypeVar("T")

# XLA walks graphs by recursion, and deep ones need more than a thread has by default.
_STACK_BYTES = 64 * 2**20

_Job = tuple["Future[Any]", Callable[[], Any]]


class BackgroundCompiler:
    """One thread that compiles, started when it is first needed: XLA itself uses every core."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._unfinished: set[Future[Any]] = set()

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Run `job` on the thread after those submitted before it."""
        future: Future[T] = Future()
        with self._lock:
            self._unfinished.add(future)
            if self._thread is None:
                self._thread = self._start()
        future.add_done_callback(self._finished)
        self._jobs.put((future, job))
        return future

    def wait(self) -> None:
        """Return when everything submitted so far is done; an error stays for the next call."""
        with self._lock:
            unfinished = list(self._unfinished)
        for future in unfinished:
            future.exception()

    def _finished(self, future: Future[Any]) -> None:
        with self._lock:
            self._unfinished.discard(future)

    def _start(self) -> threading.Thread:
        # A daemon: a process that ends does not wait for a program that nobody will run.
        thread = threading.Thread(target=self._work, name="tpu_compile", daemon=True)
        before = threading.stack_size(_STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
        return thread

    def _work(self) -> None:
        while True:
            # In a call of its own, so that nothing of a job outlives it while this waits.
            _run(*self._jobs.get())


def _run(future: Future[Any], job: Callable[[], Any]) -> None:
    try:
        with torch.no_grad():
            result = job()
    # Whatever it is, the call that asks for the program raises it.
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


BACKGROUND = BackgroundCompiler()


class Awaited:
    """A program in the making, called like one: until it is there, eager PyTorch runs the graph."""

    def __init__(
        self,
        make: Callable[[], Callable[[Sequence[Any]], list[Any]]],
        graph_module: fx.GraphModule,
    ) -> None:
        self._graph_module = graph_module
        self._program: Callable[[Sequence[Any]], list[Any]] | None = None
        self._future = BACKGROUND.submit(make)

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """Return the graph's outputs.

        Raises:
            CompilationError: XLA refused the module.
        """
        program = self._program
        if program is None:
            if not self._future.done():
                return run_eagerly(self._graph_module, args)
            program = self._program = self._future.result()
        return program(args)


def run_eagerly(graph_module: fx.GraphModule, args: Sequence[Any]) -> list[Any]:
    """Return the outputs of a functional graph op by op; what it mutates is updated."""
    RECORDER.count("eager_calls")
    with torch.no_grad():
        outputs = fx.Interpreter(graph_module).run(*args)
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
