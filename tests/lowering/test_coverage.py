"""The generated page of lowered ops is true for this tree, and a floor on Core ATen."""

from __future__ import annotations

from lowering.coverage import PAGE, core_overloads, evidence, page, state


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text() == page(), "run python -m lowering.coverage --write"


# They are numbers on the host, and never reach a program.
SIZE_QUERIES = [
    "aten.sym_is_contiguous.default",
    "aten.sym_numel.default",
    "aten.sym_stride.int",
]


def test_every_core_aten_overload_but_size_queries_compiles() -> None:
    proofs = evidence()
    states = {str(overload): state(overload, proofs) for overload in core_overloads()}
    assert len(states) == 193
    others = [name for name, how in states.items() if how not in ("native", "decomposed")]
    assert [name for name in others if name not in SIZE_QUERIES] == []


def test_enough_overloads_are_proven() -> None:
    assert len(evidence()) >= 750
