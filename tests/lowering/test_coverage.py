"""The generated page of lowered ops is true for this tree, and a floor on Core ATen."""

from __future__ import annotations

from lowering.coverage import PAGE, core_overloads, evidence, page, state


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text() == page(), "run python -m lowering.coverage --write"


def test_core_aten_overloads_that_fall_back_are_the_known_ones() -> None:
    assert [str(op) for op in core_overloads() if state(op) == "falls back"] == [
        "aten._cdist_forward.default",
        "aten._fft_c2r.default",
        "aten._fft_r2c.default",
        "aten._local_scalar_dense.default",
        "aten._native_batch_norm_legit.default",
        "aten._pdist_forward.default",
        "aten.atan2.out",
        "aten.nonzero.default",
        "aten.resize_.default",
        "aten.sym_numel.default",
        "aten.sym_storage_offset.default",
        "aten.upsample_bilinear2d.vec",
        "aten.upsample_nearest2d.vec",
    ]
