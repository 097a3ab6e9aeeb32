"""The call path of one loaded program: arguments to the device, execution, outputs as torch wants.

This is the hot path: it does no dictionary walks and converts only what changed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from lowering.importer import RNG_KEY
from lowering.signature import FromArgument, FromResult, NumberFromResult, Output
from tpu_compile.errors import DeviceError
from tpu_compile.history import GraphName
from tpu_compile.interface import Interface, Parameter
from tpu_compile.runtime import pjrt
from tpu_compile.runtime.arguments import HostArgument, HostArguments
from tpu_compile.runtime.buffers import Arguments, CopySlot, HostSlot, SlotArguments
from tpu_compile.statistics import RECORDER


class Program:
    """One loaded executable and how to call it with torch tensors."""

    def __init__(
        self,
        interface: Interface,
        client: pjrt.Client,
        executable: Any,
        name: GraphName,
        versions_ahead: Collection[int],
    ) -> None:
        """Make an executable callable.

        Args:
            interface: what it takes and gives back.
            client: where it runs.
            executable: the loaded program.
            name: what errors call it.
            versions_ahead: see `GraphExecutable`.
        """
        self._name = name
        self._client = client
        self._executable = executable
        self._on_device = [result.on_device for result in interface.results]
        self._reads_device = any(self._on_device)
        uses_device = self._reads_device or any(p.on_device for p in interface.parameters)
        constants = _upload_constants(interface, client)
        self._resident_updates: list[tuple[int, int, CopySlot]] = []
        self._arguments: Arguments
        if client.aliases_host_memory and not uses_device:
            self._arguments = _host_arguments(interface, client, constants)
        else:
            slots = _slots(interface, client, versions_ahead)
            self._arguments = SlotArguments(slots, constants)
            self._resident_updates = _resident_updates(interface, dict(slots))
        # Where arrays are shared copies, no other thread may donate one between the moment it is
        # looked up and the moment the execution holds it.
        self._dispatch_lock = None if client.aliases_host_memory else client.dispatch_lock
        self._rng_plan = client.put_plan(*RNG_KEY) if interface.uses_rng else None
        self._draws_on_device = uses_device
        self._handlers = [client.read_plan(*layout.physical) for layout in interface.results]
        self._dtypes = [layout.spec.dtype for layout in interface.results]
        self._shapes = [layout.physical.shape for layout in interface.results]
        self._outputs = interface.outputs
        self._is_plain = all(
            isinstance(output, FromResult) and output.view is None and output.index == index
            for index, output in enumerate(interface.outputs)
        ) and len(interface.outputs) == len(interface.results)
        self._mutations = interface.mutations

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """Return the graph's outputs for its placeholders' values; mutated inputs are updated.

        Nothing of the user's is written before every result is there.
        """
        results, buffers = self._run(args)
        outputs = (
            results
            if self._is_plain
            else [output_of(output, results, args) for output in self._outputs]
        )
        if self._mutations:
            self._write_back(results, buffers, args)
        return outputs

    def _run(
        self, args: Sequence[Any], sizes: Sequence[Any] = ()
    ) -> tuple[list[torch.Tensor], list[Any]]:
        """Return the results as tensors, and their arrays.

        `sizes` is the array of run-time sizes, where the program takes one.
        """
        if not self._handlers:
            return [], []
        client = self._client
        if not client.is_open:
            client.require_open()
        lock = self._dispatch_lock
        if lock is not None:
            lock.acquire()
        try:
            brought = self._arguments.bring(args)
            arrays = brought.arrays
            if self._rng_plan is not None:
                arrays = [*arrays, client.put(self._draw_key(), self._rng_plan)]
            if sizes:
                arrays = [*arrays, *sizes]
            buffers = pjrt.execute(self._executable, arrays, self._handlers)
        except pjrt.RUNTIME_ERRORS as error:
            raise self._failed(error, args) from error
        finally:
            if lock is not None:
                lock.release()
        RECORDER.count_execution()
        if self._reads_device:
            results = self._read_on_device(buffers, args)
        else:
            try:
                results = client.read_all(buffers, self._dtypes)
            except pjrt.RUNTIME_ERRORS as error:
                raise self._failed(error, args) from error
        self._arguments.give_back(brought)
        return results, buffers

    def _read_on_device(self, buffers: list[Any], args: Sequence[Any]) -> list[torch.Tensor]:
        """Return the results as tensors where they belong; wait for those of the host."""
        from tpu_compile.device.residence import result_tensor

        results = []
        for place, buffer in enumerate(buffers):
            dtype = self._dtypes[place]
            if self._on_device[place]:
                results.append(result_tensor(buffer, self._shapes[place], dtype))
                continue
            try:
                buffer.block_until_ready()
                results.append(self._client.read(buffer, dtype))
            except pjrt.RUNTIME_ERRORS as error:
                raise self._failed(error, args) from error
        return results

    def _draw_key(self) -> torch.Tensor:
        """Return the key of one call, from the random numbers of where its tensors are."""
        if not self._draws_on_device:
            return _draw_key()
        from tpu_compile.device.residence import draw_key

        return draw_key()

    def _failed(self, error: Exception, args: Sequence[Any]) -> DeviceError:
        """Return the error to raise; donated copies are gone, so they are forgotten."""
        mutated = [args[mutation.placeholder] for mutation in self._mutations]
        self._client.residency.drop(mutated)
        failed = DeviceError(
            f"The compiled {self._name} failed while it ran",
            where=self._name.where,
            why=str(error),
            ways_out=("smaller inputs, if memory ran out", "report it as a fault of tpu_compile"),
        )
        if any(tensor.device.type == "tpu" for tensor in mutated):
            from tpu_compile.device.residence import lose

            lose(mutated, failed)
        return failed

    def _write_back(
        self, results: list[torch.Tensor], buffers: list[Any], args: Sequence[Any]
    ) -> None:
        with torch.no_grad():
            values = [output_of(mutation.value, results, args) for mutation in self._mutations]
            for mutation, value in zip(self._mutations, values, strict=True):
                write(args[mutation.placeholder], value)
        for placeholder, result, slot in self._resident_updates:
            slot.replace(args[placeholder], buffers[result])


def write(target: torch.Tensor, value: torch.Tensor) -> None:
    """Give `target` the elements of `value`; a device tensor takes over its array."""
    if target.device.type == "tpu":
        from tpu_compile.device.residence import replace

        if value.device.type == "tpu" and replace(target, value):
            return
    target.copy_(value)


def _upload_constants(interface: Interface, client: pjrt.Client) -> list[tuple[int, Any]]:
    """Return the arrays of the constants that the module takes as arguments, with places."""
    constants = []
    with _disable_current_modes():
        for place, parameter in enumerate(interface.parameters):
            if parameter.constant is not None:
                plan = client.put_plan(*parameter.physical)
                constants.append((place, client.put(parameter.constant, plan)))
    return constants


def _host_arguments(
    interface: Interface, client: pjrt.Client, constants: Sequence[tuple[int, Any]]
) -> HostArguments:
    arguments = [
        HostArgument(client, place, parameter.placeholder, parameter.physical, parameter.order)
        for place, parameter in enumerate(interface.parameters)
        if parameter.placeholder is not None
    ]
    return HostArguments(client, arguments, constants)


def _slots(
    interface: Interface, client: pjrt.Client, versions_ahead: Collection[int]
) -> list[tuple[int, Any]]:
    """Return, for each placeholder that the module takes, what brings its tensors to `client`."""
    mutated = {mutation.placeholder for mutation in interface.mutations}
    slots = []
    for parameter in interface.parameters:
        index = parameter.placeholder
        if index is None:
            continue
        slot: Any = _host_slot(client, parameter, index in mutated, index in versions_ahead)
        if parameter.on_device:
            from tpu_compile.device.residence import DeviceSlot

            slot = DeviceSlot(*parameter.spec, parameter.order, slot)
        slots.append((index, slot))
    return slots


def _host_slot(
    client: pjrt.Client, parameter: Parameter, is_mutated: bool, is_ahead: bool
) -> HostSlot | CopySlot:
    shape, dtype = parameter.spec
    if client.aliases_host_memory:
        return HostSlot(client, shape, dtype, parameter.order)
    return CopySlot(client, shape, dtype, parameter.order, mutated=is_mutated, ahead=int(is_ahead))


def _resident_updates(
    interface: Interface, slots: dict[int, Any]
) -> list[tuple[int, int, CopySlot]]:
    """Return (placeholder, result, slot) where a result can stay on the device as the new value."""
    parameters = {parameter.placeholder: parameter for parameter in interface.parameters}
    updates = []
    for mutation in interface.mutations:
        slot = slots.get(mutation.placeholder)
        if not isinstance(slot, CopySlot) or mutation.result is None:
            continue
        parameter, result = parameters[mutation.placeholder], interface.results[mutation.result]
        if (parameter.spec, parameter.order) == (result.spec, result.order):
            updates.append((mutation.placeholder, mutation.result, slot))
    return updates


def _draw_key() -> torch.Tensor:
    """Return the key of one call, drawn from torch's default generator: uint32[2]."""
    return torch.empty((1,), dtype=torch.int64, device="cpu").random_().view(torch.uint32)


def output_of(output: Output, results: Sequence[torch.Tensor], args: Sequence[Any]) -> Any:
    """Return one output of a graph from its program's results and the graph's inputs."""
    if isinstance(output, FromResult):
        tensor, view = results[output.index], output.view
        return tensor if view is None else tensor.as_strided(*view)
    if isinstance(output, FromArgument):
        tensor, view = args[output.placeholder], output.view
        if view is None:
            return tensor
        return tensor.as_strided(view.size, view.stride, tensor.storage_offset() + view.offset)
    if isinstance(output, NumberFromResult):
        return results[output.index].item()
    return output.value
