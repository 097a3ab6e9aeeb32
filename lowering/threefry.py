"""Counter-based random bits in StableHLO: Threefry-2x32 with 20 rounds, keyed by logical index.

Element `i` of the tensor that random op number `n` of a program draws depends on the program's
key, on `n`, on the stream within the op and on `i`, the logical row-major index, and on nothing
else: not on the shape, the padding or the order of execution.

Source: Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch

from lowering import hlo
from lowering.context import LoweringContext
from lowering.dtypes import spec_of
from lowering.hlo_indexing import linear_index
from lowering.mlir import ir, stablehlo

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
KEY_PARITY = 0x1BD11BDA
STREAM_BITS = 2

# One counter word numbers the elements.
MOST_ELEMENTS = 2**32


def threefry(
    key: tuple[ir.Value, ir.Value], counter: tuple[ir.Value, ir.Value]
) -> tuple[ir.Value, ir.Value]:
    """Return the two ui32 words that belong to `key` and `counter`, all of one shape."""
    parity = hlo.full_like(key[0], KEY_PARITY)
    schedule = (*key, stablehlo.xor(stablehlo.xor(*key), parity))
    left = stablehlo.add(counter[0], schedule[0])
    right = stablehlo.add(counter[1], schedule[1])
    for group in range(5):
        for distance in ROTATIONS[group % 2]:
            left = stablehlo.add(left, right)
            right = stablehlo.xor(left, _rotate_left(right, distance))
        left = stablehlo.add(left, schedule[(group + 1) % 3])
        injected = schedule[(group + 2) % 3]
        injected = stablehlo.add(injected, hlo.full_like(injected, group + 1))
        right = stablehlo.add(right, injected)
    return left, right


def _rotate_left(word: ir.Value, distance: int) -> ir.Value:
    high = stablehlo.shift_left(word, hlo.full_like(word, distance))
    low = stablehlo.shift_right_logical(word, hlo.full_like(word, 32 - distance))
    return stablehlo.or_(high, low)


class Source:
    """The random bits of one op; make one per lowering, as each takes an op number."""

    def __init__(self, ctx: LoweringContext) -> None:
        self._ctx = ctx
        self._key, self._number = ctx.rng_key()
        self._index = ctx.element_index

    def words(self, shape: Sequence[int], stream: int = 0) -> tuple[ir.Value, ir.Value]:
        """Return two independent words (ui32) for each position of `shape`.

        `stream` (0 to 3) tells apart several draws of one op.

        Raises:
            UnsupportedOpError: there are more elements than a counter word can number.
        """
        if math.prod(shape) > MOST_ELEMENTS:
            raise self._ctx.unsupported("it draws more than 2**32 random numbers at once")
        draw = hlo.full(shape, torch.uint32, self._number << STREAM_BITS | stream)
        index = linear_index(shape, torch.uint32) if self._index is None else self._index
        return self._words(index, draw)

    def _words(self, index: ir.Value, draw: ir.Value) -> tuple[ir.Value, ir.Value]:
        shape = spec_of(index).shape
        first, second = (
            hlo.broadcast_in_dim(hlo.reshape(half, ()), shape, [])
            for half in (hlo.slice_in_dim(self._key, i, i + 1, dim=0) for i in range(2))
        )
        return threefry((first, second), (index, draw))

    @property
    def key(self) -> ir.Value:
        """The key (ui32[2]), for a loop to carry into its body."""
        return self._key

    @property
    def given_index(self) -> list[ir.Value]:
        """The index of each element, for a loop to carry, unless it follows from the shape."""
        return [] if self._index is None else [self._index]

    def for_round(self, key: ir.Value, number: ir.Value, index: Sequence[ir.Value] = ()) -> Source:
        """Return a source that no other round of a loop has; `number` is the round's, 0-d ui32.

        `key` and `index` (`given_index`) are this source's, as the loop carries them. Its key is
        drawn from stream 3, which the op must not use otherwise.
        """
        outer, inner = copy.copy(self), copy.copy(self)
        outer._key = key
        draw = hlo.scalar(self._number << STREAM_BITS | 3, torch.uint32)
        words = outer._words(hlo.reshape(number, ()), draw)
        inner._key = hlo.concatenate([hlo.reshape(word, (1,)) for word in words], 0)
        inner._number = 0
        inner._index = index[0] if index else None
        return inner


def fresh_key(ctx: LoweringContext, step: ir.Value | None = None) -> ir.Value:
    """Return a key (ui32[2]) that nothing else of the program draws from.

    `step` (0-d ui32) tells the passes of a loop apart.
    """
    key, number = ctx.rng_key()
    step = hlo.scalar(0, torch.uint32) if step is None else step
    halves = [hlo.reshape(hlo.slice_in_dim(key, i, i + 1, dim=0), ()) for i in range(2)]
    draw = hlo.scalar(number << STREAM_BITS, torch.uint32)
    words = threefry((halves[0], halves[1]), (step, draw))
    return hlo.concatenate([hlo.reshape(word, (1,)) for word in words], 0)


# --- from bits to numbers ------------------------------------------------------------------------


def _top_bits(word: ir.Value, bits: int, dtype: torch.dtype) -> ir.Value:
    """Return the top `bits` (below 32) of `word` as a number of the floating `dtype`."""
    shifted = stablehlo.shift_right_logical(word, hlo.full_like(word, 32 - bits))
    return hlo.convert(hlo.bitcast(shifted, torch.int32), dtype)


def scaled(operand: ir.Value, factor: float) -> ir.Value:
    """Return `operand * factor`."""
    return stablehlo.multiply(operand, hlo.full_like(operand, factor))


def mantissa_digits(dtype: torch.dtype) -> int:
    """Return how many binary digits a float of `dtype` has: 24 for float32."""
    return 1 - round(math.log2(torch.finfo(dtype).eps))


def unit_interval(words: tuple[ir.Value, ir.Value], dtype: torch.dtype) -> ir.Value:
    """Return numbers in [0, 1), multiples of 2**-digits of `dtype`, as eager draws them."""
    digits = mantissa_digits(dtype)
    if digits < 32:
        return scaled(_top_bits(words[0], digits, dtype), 2.0**-digits)
    high = scaled(_top_bits(words[0], 27, dtype), 2.0 ** (digits - 27))
    return scaled(stablehlo.add(high, _top_bits(words[1], digits - 27, dtype)), 2.0**-digits)


def open_interval(words: tuple[ir.Value, ir.Value], dtype: torch.dtype) -> ir.Value:
    """Return numbers in (0, 1], finely spaced near 0, for logarithms; float32 or float64."""
    if dtype is torch.float64:
        number = unit_interval(words, dtype)
        return stablehlo.subtract(hlo.full_like(number, 1.0), number)
    number = hlo.convert(words[0], dtype)
    return scaled(stablehlo.add(number, hlo.full_like(number, 0.5)), 2.0**-32)


def positive_exponential(words: tuple[ir.Value, ir.Value], dtype: torch.dtype) -> ir.Value:
    """Return exponential numbers of rate 1, never zero; float32 or float64."""
    number = stablehlo.negate(stablehlo.log(open_interval(words, dtype)))
    return stablehlo.maximum(number, hlo.full_like(number, torch.finfo(dtype).eps / 2))


def normal_pair(
    source: Source, shape: Sequence[int], dtype: torch.dtype
) -> tuple[ir.Value, ir.Value]:
    """Return two independent standard normals a position (Box and Muller 1958).

    float32 or float64; up to 6.7 and 8.6 standard deviations come out.
    """
    words = source.words(shape)
    if dtype is torch.float64:
        angle = unit_interval(source.words(shape, stream=1), dtype)
    else:
        angle = unit_interval((words[1], words[0]), dtype)
    square = scaled(stablehlo.log(open_interval(words, dtype)), -2.0)
    radius, angle = stablehlo.sqrt(square), scaled(angle, 2 * math.pi)
    return (
        stablehlo.multiply(radius, stablehlo.cosine(angle)),
        stablehlo.multiply(radius, stablehlo.sine(angle)),
    )


def below(words: tuple[ir.Value, ir.Value], count: int) -> ir.Value:
    """Return integers in [0, count) as ui32 or ui64; `count` is at most 2**64.

    floor(random * count / 2**b): each is as likely as the others up to count / 2**b, where b is
    64, or 32 for the counts up to 2**16, which stay within 32-bit arithmetic.
    """
    if count <= 2**16:
        half = hlo.full_like(words[0], 16)
        factor = hlo.full_like(words[0], count)
        high = stablehlo.multiply(stablehlo.shift_right_logical(words[0], half), factor)
        low = stablehlo.and_(words[0], hlo.full_like(words[0], 0xFFFF))
        low = stablehlo.shift_right_logical(stablehlo.multiply(low, factor), half)
        return stablehlo.shift_right_logical(stablehlo.add(high, low), half)
    first, second = (hlo.convert(word, torch.uint64) for word in words)
    shift = hlo.full_like(first, 32)
    if count > 2**32:
        number = stablehlo.or_(stablehlo.shift_left(first, shift), second)
        if count == 2**64:
            return number
        return stablehlo.remainder(number, hlo.full_like(number, count))
    factor = hlo.full_like(first, count)
    carried = stablehlo.shift_right_logical(stablehlo.multiply(second, factor), shift)
    total = stablehlo.add(stablehlo.multiply(first, factor), carried)
    return stablehlo.shift_right_logical(total, shift)


def below_run_time(words: tuple[ir.Value, ir.Value], count: ir.Value) -> ir.Value:
    """Return the integers of `below` as ui64 for a 0-d `count` (ui64) of at most 2**32."""
    first, second = (hlo.convert(word, torch.uint64) for word in words)
    factor = hlo.broadcast_to(count, spec_of(first).shape)
    shift = hlo.full_like(first, 32)
    total = stablehlo.multiply(first, factor)
    carried = stablehlo.shift_right_logical(stablehlo.multiply(second, factor), shift)
    # Small counts take 32 random bits, as in `below`.
    small = hlo.compare(factor, hlo.full_like(factor, 2**16), "LE")
    carried = hlo.select(small, hlo.full_like(carried, 0), carried)
    return stablehlo.shift_right_logical(stablehlo.add(total, carried), shift)


def chance(words: tuple[ir.Value, ir.Value], probability: float) -> ir.Value:
    """Return booleans that are true with `probability`, to within 2**-33."""
    threshold = round(probability * 2**32)
    if threshold >= 2**32:
        return hlo.full(spec_of(words[0]).shape, torch.bool, True)
    return hlo.compare(words[0], hlo.full_like(words[0], threshold), "LT")
