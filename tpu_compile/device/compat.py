"""The only module of the device that touches private calls of torch.

A new torch release is this file's work: `require_hooks` says what a release lacks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._C import DispatchKey, DispatchKeySet
from torch._dynamo import trace_rules
from torch._ops import OpOverload
from torch.nn.modules import lazy
from torch.utils import backend_registration

from tpu_compile.errors import DeviceError
from tpu_compile.runtime.arguments import let_go_of
from tpu_compile.runtime.platforms import opened_client

NAME = "tpu"
KEY = "PrivateUse1"
"""The dispatch key of a plugin's device."""
LACKING_KEYS = {
    "SparsePrivateUse1": "sparse",
    "SparseCsrPrivateUse1": "sparse",
    "QuantizedPrivateUse1": "quantized",
    "NestedTensorPrivateUse1": "nested",
}
"""The keys of tensors that the device has not, though torch would wrap some around its own."""
AUTOGRAD_KEY = "AutogradPrivateUse1"
AUTOCAST_KEY = "AutocastPrivateUse1"
_CPU = DispatchKeySet(DispatchKey.CPU)

# What is used of torch's private side.
_HOOKS = (
    "torch._C._acc.create_empty_tensor",
    "torch._C._acc.DeviceGuard",
    "torch._C._acc.PrivateUse1Hooks",
    "torch._C._construct_storage_from_data_pointer",
    "torch._C._dispatch_get_all_op_names",
    "torch._C._dispatch_get_registrations_for_dispatch_key",
    "torch._C._get_privateuse1_backend_name",
    "torch._C._ExcludeDispatchKeyGuard",
    "torch._C.DispatchKey.AutocastPrivateUse1",
    "torch._C.DispatchKey.AutogradPrivateUse1",
    "torch._ops.OpOverload.redispatch",
    "torch.autograd.graph._engine_run_backward",
    "torch.ops.aten.set_.source_Storage_storage_offset._handle.redispatch_boxed",
    "torch._dynamo.trace_rules.add",
    "torch._neg_view",
    "torch._tensor_str._tensor_str",
    "torch.accelerator.memory",
    "torch.UntypedStorage._swap_data_ptr_",
    "torch.utils.backend_registration._setup_privateuseone_for_python_backend",
    "torch.utils.generate_methods_for_privateuse1_backend",
)


def _is_missing(name: str) -> bool:
    owner: Any = torch
    for part in name.split(".")[1:]:
        if not hasattr(owner, part):
            return True
        owner = getattr(owner, part)
    return False


def require_hooks() -> None:
    """Check that this torch has what a device written in Python needs.

    Raises:
        DeviceError: it has not, or another backend has taken the place.
    """
    missing = list(filter(_is_missing, _HOOKS))
    if missing:
        raise DeviceError(
            f"torch {torch.__version__} lacks what the device {NAME!r} is made of",
            why=f"there is no {', '.join(missing)}",
            ways_out=(
                "a release of torch that docs/compatibility.md lists",
                'torch.compile(..., backend="tpu") on CPU tensors, which needs none of it',
            ),
        )
    taken = torch._C._get_privateuse1_backend_name()
    if taken not in ("privateuseone", NAME):
        raise DeviceError(
            f"The device {NAME!r} cannot be registered",
            why=f"torch has room for one device of a plugin, and {taken!r} is there already",
            ways_out=("a process that does not import the other plugin",),
        )


def register_device(module: Any) -> None:
    """Make `tpu` a device of torch, with `module` as `torch.tpu`."""

    class Hooks(torch._C._acc.PrivateUse1Hooks):
        """What torch's C++ side asks about the device as a whole."""

        def is_available(self) -> bool:
            return True

        def is_built(self) -> bool:
            return True

        def has_primary_context(self, dev_id: int) -> bool:
            return True

    class Guard(torch._C._acc.DeviceGuard):
        """What torch's C++ side asks when it changes devices: there is one."""

        def type_(self) -> Any:
            return torch._C._autograd.DeviceType.PrivateUse1

    backend_registration._setup_privateuseone_for_python_backend(
        NAME, backend_module=module, hook=Hooks(), device_guard=Guard()
    )


# Looked up once: these are on the path of every op. None of them is called if `_HOOKS` lack it.
_construct: Any = getattr(torch._C, "_construct_storage_from_data_pointer", None)
_empty: Any = getattr(getattr(torch._C, "_acc", None), "create_empty_tensor", None)
_handle: Any = getattr(torch.ops.aten.set_.source_Storage_storage_offset, "_handle", None)
_set: Any = getattr(_handle, "redispatch_boxed", None)


def new_storage(pointer: int, device: torch.device, nbytes: int) -> torch.UntypedStorage:
    """Return a storage of the device; `pointer` is a name for it and never read from."""
    storage: Any = _construct(pointer, device, nbytes)
    return storage


def new_tensor(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int = 0,
) -> torch.Tensor:
    """Return a tensor of the device that lies in `storage`."""
    tensor = _empty((0,), dtype)
    _set(_CPU, tensor, storage, offset, size, stride)
    return tensor


def as_metadata(op: OpOverload) -> Callable[..., Any]:
    """Return a kernel that runs the CPU's: right where only sizes and strides change."""
    return functools.partial(op._handle.redispatch_boxed, _CPU)


def composite_overloads() -> list[tuple[OpOverload, bool]]:
    """Return the overloads of ATen that torch makes of others on a device without kernels.

    The flag says that torch would make them of `empty` and their `out=` variant.
    """
    found: dict[OpOverload, bool] = {}
    for key in ("CompositeExplicitAutogradNonFunctional", "CompositeExplicitAutograd"):
        for name in torch._C._dispatch_get_registrations_for_dispatch_key(key):
            namespace, _, rest = name.partition("::")
            packet, _, overload = rest.partition(".")
            if namespace == "aten":
                op = getattr(getattr(torch.ops.aten, packet), overload or "default")
                found.setdefault(op, key.endswith("NonFunctional"))
    return list(found.items())


def negated(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of `tensor` that is negated on reading."""
    return torch._neg_view(tensor)


def aten_overloads(prefixes: tuple[str, ...]) -> list[OpOverload]:
    """Return the overloads of ATen whose names begin with one of `prefixes`."""
    found = []
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if namespace == "aten" and packet.startswith(prefixes):
            found.append(getattr(getattr(torch.ops.aten, packet), overload or "default"))
    return found


def swap_memory(storage: torch.UntypedStorage, other: torch.UntypedStorage) -> None:
    """Exchange address and size of two storages of the device, in place.

    torch swaps with an empty storage, or with one of the same size: here with both in turn.
    """
    swap: Any = storage._swap_data_ptr_  # type: ignore[attr-defined]
    swap(new_storage(0, storage.device, 0))
    swap(other)


def no_autocast() -> Any:
    """Return a context in which ops of the device run without autocast."""
    return torch._C._ExcludeDispatchKeyGuard(DispatchKeySet(getattr(DispatchKey, AUTOCAST_KEY)))


# --- what torch must be told, or does otherwise ---------------------------------------------------


def patch() -> None:
    """Set what torch must be told of a device without memory of its own."""
    _patch_conversion()
    # After a graph break ops run with Dynamo watching: it must not compile our kernels' own code.
    for name in ("tpu_compile", "lowering", "jaxlib"):
        trace_rules.add(name)
    lazy.LazyModuleMixin._apply = _apply_around_uninitialized  # type: ignore[attr-defined]
    _patch_printing()
    _patch_backward()


def _apply_around_uninitialized(self: Any, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
    """Do what `Module._apply` does; it cannot swap parameters without sizes, on any device."""
    waiting = {k: p for k, p in self._parameters.items() if lazy.is_lazy(p)}
    self._parameters.update(dict.fromkeys(waiting))
    try:
        super(lazy.LazyModuleMixin, self)._apply(fn, recurse)
    finally:
        self._parameters.update(waiting)
    # What torch's type stubs say of it is wrong.
    make: Any = torch.nn.UninitializedParameter
    for name, parameter in waiting.items():
        place = fn(parameter)
        self._parameters[name] = make(
            parameter.requires_grad, device=place.device, dtype=place.dtype
        )
    return self


def patch_storages(
    make: Callable[..., torch.UntypedStorage], methods: Mapping[str, Callable[..., Any]]
) -> None:
    """Let `torch.UntypedStorage` make storages of the device, and use `methods` on them."""
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=False, for_module=False, for_packed_sequence=False, for_storage=True
    )
    _patch_new(torch.UntypedStorage, make)
    patch_methods(torch.UntypedStorage, methods)


def patch_methods(owner: Any, methods: Mapping[str, Callable[..., Any]]) -> None:
    """Use `methods` in place of those of `owner` on objects of the device."""
    for name, method in methods.items():
        _patch_method(owner, name, method)


def patch_accelerator(functions: Mapping[str, Callable[..., Any]]) -> None:
    """Use `functions` in place of those of `torch.accelerator`, whose C++ side has no memory."""
    for name, function in functions.items():
        for owner in (torch.accelerator, torch.accelerator.memory):
            if hasattr(owner, name):
                setattr(owner, name, function)


def _patch_conversion() -> None:
    """Swap the parameters of modules that move between the device and the CPU.

    Torch makes new parameters otherwise, which unties tied weights. It can be told to swap them,
    but for everything: `load_state_dict` of compiled modules would fail, whose parameters have weak
    references.
    """
    original: Any = torch.nn.Module._apply
    future = torch.__future__

    @functools.wraps(original)
    def apply(self: torch.nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
        if future.get_swap_module_params_on_conversion() or not _changes_device(self, fn):
            return original(self, fn, recurse)
        _let_go_of([*self.parameters(recurse), *self.buffers(recurse)])
        future.set_swap_module_params_on_conversion(True)
        try:
            return original(self, fn, recurse)
        finally:
            future.set_swap_module_params_on_conversion(False)

    torch.nn.Module._apply = apply  # type: ignore[method-assign]


def _let_go_of(tensors: Sequence[torch.Tensor]) -> None:
    """Forget what programs keep of tensors that are about to be swapped."""
    client = opened_client()
    if client is not None:
        client.residency.drop(tensors)
    for tensor in tensors:
        let_go_of(tensor)


def _changes_device(module: torch.nn.Module, fn: Callable[[Any], Any]) -> bool:
    """Whether a conversion of a module's tensors, tried on empty ones, moves some to or from us."""
    for device in {tensor.device for tensor in (*module.parameters(), *module.buffers())}:
        with torch.no_grad():
            found = fn(torch.empty((0,), device=device)).device
        if found.type != device.type and NAME in (found.type, device.type):
            return True
    return False


def _patch_backward() -> None:
    """Run backward passes in the thread that asks for them.

    The engine has a thread for each device that torch knew when the first backward pass ran, which
    may have been before ours. With kernels in Python a thread of its own would gain nothing.
    """
    original = torch.autograd.graph._engine_run_backward

    @functools.wraps(original)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        with torch.autograd.set_multithreading_enabled(False):
            return original(*args, **kwargs)

    torch.autograd.graph._engine_run_backward = run_backward
    torch.autograd._engine_run_backward = run_backward


def _patch_printing() -> None:
    """Print tensors from a CPU copy: torch's printing is a dozen programs otherwise."""
    original = torch._tensor_str._tensor_str

    @functools.wraps(original)
    def elements_text(self: torch.Tensor, indent: int) -> str:
        return str(original(self.cpu() if self.device.type == NAME else self, indent))  # type: ignore[no-untyped-call]

    torch._tensor_str._tensor_str = elements_text


def _patch_new(owner: Any, make: Callable[..., torch.UntypedStorage]) -> None:
    original = owner.__new__

    def new(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is not None:
            if torch.device(device).type == NAME:
                return make(*args, device=device, **kwargs)
            kwargs["device"] = device
        return original(cls, *args, **kwargs)

    owner.__new__ = new


def _patch_method(owner: Any, name: str, method: Callable[..., Any]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def patched(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.device.type == NAME:
            return method(self, *args, **kwargs)
        return original(self, *args, **kwargs)

    setattr(owner, name, patched)
