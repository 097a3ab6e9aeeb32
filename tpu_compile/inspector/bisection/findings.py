"""What a comparison with eager PyTorch found."""

from __future__ import annotations

from dataclasses import dataclass, field

from tpu_compile.inspector.bisection.tolerances import Difference


@dataclass(frozen=True)
class Comparison:
    """One node, or one whole graph, compared with eager."""

    graph: str
    node: str
    op: str
    """The overload; of a whole graph, that of its worst result."""
    where: str
    difference: Difference
    is_fault: bool = False
    """Beyond the tolerance, and nothing excuses it."""
    verdict: str = ""
    """What the other witnesses say; empty within the tolerance."""


@dataclass(frozen=True)
class Skipped:
    """A node that was not compared, and why."""

    graph: str
    node: str
    op: str
    where: str
    why: str


@dataclass
class Findings:
    """All comparisons of one call, in the order in which the nodes ran."""

    nodes: list[Comparison] = field(default_factory=list)
    graphs: list[Comparison] = field(default_factory=list)
    """The worst result of each whole graph, as one program."""
    skipped: list[Skipped] = field(default_factory=list)

    @property
    def worst_nodes(self) -> list[Comparison]:
        """Those of nodes: wrong ones, then those that are nearest to their tolerance."""
        return sorted(self.nodes, key=lambda each: (not each.is_fault, -each.difference.ratio))

    @property
    def faults(self) -> list[Comparison]:
        """Those that are wrong, nodes before whole graphs."""
        return [each for each in (*self.nodes, *self.graphs) if each.is_fault]
