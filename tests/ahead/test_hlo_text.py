# ruff: noqa: E501 (HLO is as XLA prints it)
from __future__ import annotations

import pytest

from tpu_compile.ahead.hlo_text import entry_types, parse, shapes_in, tile_waste

TEXT = """\
HloModule m, entry_computation_layout={(f32[4,64]{1,0:T(8,128)}, (s32[], bf16[3,5]{1,0:T(8,128)(2,1)}))->(f32[4,64]{1,0:T(8,128)})}, x=1

%body (p: (s32[], f32[4,64])) -> (s32[], f32[4,64]) {
  %p = (s32[]{:T(128)}, f32[4,64]{1,0:T(8,128)}) parameter(0)
  %g = f32[4,64]{1,0:T(8,128)} get-tuple-element(%p), index=1
  %f = f32[4,64]{1,0:T(8,128)} fusion(%g), kind=kLoop, calls=%inner, backend_config={"estimated_cycles":"7"}
  ROOT %t = (s32[]{:T(128)}, f32[4,64]{1,0:T(8,128)}) tuple(%p, %f)
}

%cond (p.1: (s32[], f32[4,64])) -> pred[] {
  %p.1 = (s32[]{:T(128)}, f32[4,64]{1,0:T(8,128)}) parameter(0)
  ROOT %lt = pred[]{:T(512)} compare(%p.1, %p.1), direction=LT, backend_config={"estimated_cycles":"1"}
}

ENTRY %main (a: f32[4,64]) -> (f32[4,64]) {
  %a = f32[4,64]{1,0:T(8,128)} parameter(0)
  %v = f32[4,64]{1,0:T(8,128)S(1)} copy(%a), metadata={op_name="layer.0/aten.mm.default" source_file="/x y/model.py" source_line=41}, backend_config={"estimated_cycles":"100"}
  %w = (s32[]{:T(128)}, f32[4,64]{1,0:T(8,128)}) while(%v), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %c = f32[4,64]{1,0:T(8,128)} conditional(%v, %a), branch_computations={%body, %cond}
  ROOT %r = (f32[4,64]{1,0:T(8,128)}) tuple(%c)
}
"""


def test_instructions_are_read() -> None:
    module = parse(TEXT)
    assert [one.opcode for one in module.instructions] == [
        "parameter",
        "copy",
        "while",
        "conditional",
        "tuple",
    ]
    copy = module.instructions[1]
    assert copy.operands == ("a",)
    assert copy.op_name == "layer.0/aten.mm.default"
    assert copy.source == "/x y/model.py:41"
    assert copy.cycles == 100
    assert module.instructions[2].trips == 3


def test_loops_count_as_often_as_they_run_and_branches_once() -> None:
    module = parse(TEXT)
    assert module.cycles(module.instructions[2]) == 3 * (7 + 1)
    assert module.cycles(module.instructions[3]) == 7
    assert module.estimated_cycles == 100 + 24 + 7


def test_tiles_fill_up_the_minor_dims() -> None:
    shapes = list(
        shapes_in(
            "f32[4,64]{1,0:T(8,128)} bf16[3,5]{0,1:T(8,128)(2,1)} f32[2,3]{1,0} f32[7]{0:T(1024)} s32[]"
        )
    )
    assert [shape.bytes for shape in shapes] == [1024, 30, 24, 28, 4]
    # bf16[3,5] in the order 0,1: 3 is the most minor, so 128 by 8.
    assert [shape.padded_bytes for shape in shapes] == [4096, 2048, 24, 4096, 4]


def test_waste_counts_arrays_of_main_memory() -> None:
    waste = tile_waste(parse(TEXT))
    assert (waste.useful, waste.padded) == (1024, 4096)
    assert waste.share == 0.75
    ((shape, lost),) = waste.worst
    assert (str(shape), lost) == ("f32[4,64]", 3072)


def test_entry_types_are_apart() -> None:
    arguments, results = entry_types(TEXT)
    assert [str(shape) for shape in shapes_in(arguments)] == ["f32[4,64]", "s32[]", "bf16[3,5]"]
    assert [str(shape) for shape in shapes_in(results)] == ["f32[4,64]"]
    assert entry_types("HloModule m") == ("", "")


def test_other_text_is_refused() -> None:
    with pytest.raises(ValueError, match="no entry computation"):
        parse("HloModule m\n")
