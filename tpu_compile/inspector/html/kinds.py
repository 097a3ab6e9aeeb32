"""Kinds of ATen ops and HLO instructions, for the colours of the page."""

from __future__ import annotations

import functools
import re

# By words in the op's name; the first that fits counts, so that `index_add` moves data and
# `native_layer_norm` reduces.
_KINDS = (
    (
        "product",
        r"(^|_)(b?mm|addb?mm|baddbmm|addmv|mv|dot|matmul|linear|bilinear|convolution|conv\dd|conv"
        r"|attention|einsum)(_|$)",
    ),
    (
        "movement",
        r"(^|_)(view|reshape|permute|transpose|t|expand|clone|copy|slice|select|squeeze|unsqueeze"
        r"|cat|concatenate|stack|split|gather|scatter|index|embedding|pad|flip|roll|broadcast"
        r"|as|bitcast|alias|repeat|unfold|parameter|tuple|sort|topk)(_|$)",
    ),
    (
        "reduction",
        r"(^|_)(sum|mean|var|std|amax|amin|argmax|argmin|max|min|prod|norm|softmax|logsumexp"
        r"|cumsum|cumprod|any|all|reduce|pool\dd|loss)(_|$)",
    ),
)


@functools.lru_cache(maxsize=4096)
def kind_of(op: str) -> str:
    """Return the kind of an op: of `facts.OpCost`.

    >>> kind_of("aten.addmm.default"), kind_of("aten._to_copy.default"), kind_of("fusion")
    ('product', 'movement', 'other')
    """
    is_torch = "." in op
    base = op.split(".")[1] if is_torch else op.replace("-", "_")
    for kind, words in _KINDS:
        if re.search(words, base):
            return kind
    return "elementwise" if is_torch else "other"
