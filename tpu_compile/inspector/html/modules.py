"""The tree of a model's modules, and what their ops cost."""

from __future__ import annotations

from dataclasses import dataclass, field

from tpu_compile.inspector.html import facts
from tpu_compile.inspector.html.kinds import kind_of


@dataclass
class _Op:
    ops: int = 0
    instructions: int = 0
    cycles: int = 0
    memory_bytes: int = 0
    lines: dict[str, None] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """The first line, and how many others."""
        if not self.lines:
            return ""
        first = next(iter(self.lines))
        return first if len(self.lines) == 1 else f"{first} and {len(self.lines) - 1} more"


@dataclass
class _Module:
    name: str
    path: str
    own: dict[str, _Op] = field(default_factory=dict)
    modules: dict[str, _Module] = field(default_factory=dict)

    def cost(self) -> facts.ModuleCost:
        own = [
            facts.OpCost(
                name,
                kind_of(name),
                op.line,
                op.ops,
                op.instructions,
                op.cycles,
                op.memory_bytes,
            )
            for name, op in self.own.items()
        ]
        modules = [module.cost() for module in self.modules.values()]
        everything: tuple[facts.OpCost | facts.ModuleCost, ...] = (*own, *modules)
        return facts.ModuleCost(
            self.name,
            self.path,
            sum(one.ops for one in everything),
            sum(one.instructions for one in everything),
            sum(one.cycles for one in everything),
            sum(one.memory_bytes for one in everything),
            tuple(own),
            tuple(modules),
        )


class ModuleTree:
    """Collects the ops of a model by the path of their module; modules keep their order."""

    def __init__(self) -> None:
        self._root = _Module("model", "")

    def add_op(self, path: str, op: str, line: str) -> None:
        """Count a node of a graph."""
        found = self._op(path, op, line)
        found.ops += 1

    def add_instruction(self, instruction: facts.Instruction) -> None:
        """Count an instruction, as often as it runs; views and parameters are none."""
        if instruction.cycles is None and not instruction.memory_bytes:
            return
        found = self._op(instruction.module, instruction.op, instruction.line)
        found.instructions += 1
        found.cycles += (instruction.cycles or 0) * instruction.runs
        found.memory_bytes += instruction.memory_bytes * instruction.runs

    def root(self) -> facts.ModuleCost:
        """Return the whole model."""
        return self._root.cost()

    def _op(self, path: str, name: str, line: str) -> _Op:
        module = self._root
        walked: list[str] = []
        for part in path.split(".") if path else ():
            walked.append(part)
            module = module.modules.setdefault(part, _Module(part, ".".join(walked)))
        op = module.own.setdefault(name, _Op())
        if line:
            op.lines[line] = None
        return op
