"""How GEMMs are split: along K so that every batch size gives the same bits, along N by time.

A library splits K by the batch size M. Where that does not change a bit, the library's own call is
the recipe (split-K 0). Where it does, K is split in 1, 2, 4 or 8 parts whose fp32 sums are added in
order. The search runs on the device, with synthetic weights of the shape, before any weights are
loaded. The fewest splits win, never the fastest, so the same machine always makes the same choice.

Where the library's own call is the recipe, it may be split along N: the output columns are computed in
two calls where that is faster. The result is bitwise identical: an output does not depend on its column's
place. The search checks that for every split, and the certificate checks what runs. A library chooses
its tiles by the shape, and at some shapes badly: 28672 columns with M = 448 took 286 us at once on an
H200, and 166 us as 16128 columns and then 12544.

The weights and probes are those of the certificate (`checks/order_probes.py`): they show the order
of summation, which rounding the output would hide.
"""

import statistics
import time
from collections.abc import Generator, Mapping, Sequence

import torch
from torch import Tensor

from holdfast.certification.checks.order_probes import NUM_GEMM_PROBES, GemmProbes
from holdfast.certification.gemm.recipes import PLAIN, SPLITS, GemmRecipe, GemmShape, Multiply
from holdfast.certification.gemm.timing import TIMED_SIZES, TimedGemm, copies_of, time_recipe
from holdfast.numerics.batch_sizes import padded_batch_sizes
from holdfast.numerics.bits import bits_of

_MIN_SPLIT_WIDTH = 16
_MAX_OWN_ROWS = 32  # of a GEMM that a kernel of our own may compute
# Of split-N.
_MIN_COLUMNS = 16384  # narrower GEMMs did not gain
# Smaller batches are bound by loading weights; in larger ones a few tiles count for little.
_SIZES = range(144, 513, 16)
_SIXTEENTHS = (9, 12, 14, 8)  # of the columns, computed first
_ALIGNMENT = 256
_MIN_GAIN = 0.98  # of the time of one call, at most
_TIE = 1.03  # of the best time: the first within it wins; halves have small tiles, which draw more power
_ROUNDS = 3
_ROUND_SECONDS = 5e-4
_WARM_SECONDS = 0.3  # an idle device runs faster for a moment, and ranks the forms differently


def search_split_k(
    shape: GemmShape,
    multiply: Multiply,
    dtype: torch.dtype,
    device: torch.device,
    sizes: list[int],
    reference_tokens: int,
    *,
    is_timed: bool = True,
    counts_plain: bool = True,
) -> Generator[None, None, GemmRecipe]:
    """Return the recipe of one shape: the first split-K that agrees at all sizes, else at the most.

    is_timed: compare its time with the plain call's. counts_plain: count the plain call's results.
    Neither decides anything. Pauses once, before the sizes whose kernels are our own: other processes
    compile them meanwhile.
    """
    bench = _SplitKBench(shape, multiply, dtype, device, sizes, reference_tokens)
    num_plain_results = bench.compare(PLAIN, sizes)[1] if counts_plain else 0
    splits = [
        split_k
        for split_k in (SPLITS[1:] if shape.fp32_output else SPLITS)
        if not split_k
        or (shape.in_features % split_k == 0 and shape.in_features // split_k >= _MIN_SPLIT_WIDTH)
    ]
    assert splits, f"K is {shape.in_features}: it must be at least {_MIN_SPLIT_WIDTH}"
    large = [size for size in sizes if size > _MAX_OWN_ROWS]
    likely = next((one for one in splits if len(bench.compare(one, large)[0]) == len(large)), splits[0])
    split_n = bench.find_split_n(large) if likely == 0 else {}
    yield
    best: tuple[int, list[int]] | None = None
    for split_k in (likely, *(one for one in splits if one != likely)):
        matching, _ = bench.compare(split_k, sizes)
        if best is None or len(matching) > len(best[1]):
            best = split_k, matching
        if len(matching) == len(sizes):
            break
    assert best is not None
    split_k, matching = best
    split_n = {size: columns for size, columns in split_n.items() if split_k == 0 and size in matching}
    timed = [size for size in TIMED_SIZES if size <= sizes[-1] and is_timed]
    return GemmRecipe(
        shape.name,
        *shape.key,
        split_k=split_k,
        matching_sizes=tuple(matching),
        num_sizes_tested=len(sizes),
        num_plain_results=num_plain_results,
        relative_times=time_recipe(multiply, bench.weight, split_k, split_n, timed),
        split_n=tuple(split_n.items()),
    )


class _SplitKBench:
    """Synthetic weights of one shape, probes, and neighbours that are huge and tiny in turn."""

    def __init__(
        self,
        shape: GemmShape,
        multiply: Multiply,
        dtype: torch.dtype,
        device: torch.device,
        sizes: list[int],
        reference_tokens: int,
    ) -> None:
        generator = torch.Generator(device).manual_seed(shape.in_features)

        def random(*size: int) -> Tensor:
            return torch.empty(size, dtype=dtype, device=device).normal_(generator=generator)

        width = shape.in_features
        probes = GemmProbes(width, dtype, device)
        self.weight, self._probes = probes.weights(shape.out_features), probes.inputs
        most = max(*sizes, reference_tokens)
        self._neighbours = random(most, width)
        self._neighbours[::2] *= 1e3
        self._neighbours[1::2] *= 1e-3
        self._mix = torch.randint(1, 1 << 62, (shape.out_features,), generator=generator, device=device)
        self._multiply, self._sizes, self._reference_tokens = multiply, sizes, reference_tokens

    def find_split_n(self, sizes: Sequence[int]) -> dict[int, int]:
        """Return where split-N makes the library's own call faster and leaves the reference bits, among
        these sizes."""
        padded = frozenset(padded_batch_sizes(self._sizes[-1]))
        found = find_split_n(self._multiply, self.weight, [size for size in sizes if size in padded])
        matching, _ = self.compare(0, list(found), found) if found else ((), 0)
        return {size: columns for size, columns in found.items() if size in matching}

    def compare(
        self, split_k: int, sizes: Sequence[int], split_n: Mapping[int, int] | None = None
    ) -> tuple[list[int], int]:
        """Return those of the sizes that give the reference bits, and how many different results there are.
        The reference is never split along N."""
        device = self.weight.device
        calls = [(number, *seating) for number, size in enumerate(sizes) for seating in _seatings(size)]
        seats = torch.tensor([_pad(one) for _, one, _ in calls], device=device)  # [calls, probes]
        probes = torch.tensor([_pad(one) for _, _, one in calls], device=device)
        differs = torch.zeros(len(sizes), dtype=torch.bool, device=device)
        digests = torch.zeros(len(sizes), NUM_GEMM_PROBES, dtype=torch.int64, device=device)
        here = torch.tensor(_seatings(self._reference_tokens)[0], device=device)
        reference = self._product(
            self._reference_tokens, here[0], here[1], split_k
        )  # [.., probes, N], in the order of the seats
        reference = torch.empty_like(reference).index_copy_(-2, here[1], reference)
        for call, (number, seated, _) in enumerate(calls):
            at, which = seats[call, : len(seated)], probes[call, : len(seated)]
            found = self._product(sizes[number], at, which, split_k, (split_n or {}).get(sizes[number], 0))
            differs[number] |= (found != reference.index_select(-2, which)).any()
            digests[number].index_copy_(0, which, self._digest(found))
        matching = [size for size, other in zip(sizes, differs.tolist(), strict=True) if not other]
        return matching, len({tuple(digest) for digest in digests.tolist()})

    def _product(self, size: int, at: Tensor, which: Tensor, split_k: int, split_n: int = 0) -> Tensor:
        """Return the probes' rows of a product with M = size, as integers."""
        x = self._neighbours[:size].clone()
        x.index_copy_(0, at, self._probes.index_select(0, which))
        return bits_of(self._multiply(x, self.weight, split_k, split_n).index_select(-2, at))

    def _digest(self, bits: Tensor) -> Tensor:
        """Return one number for each probe: [.., probes, N] -> [probes]."""
        mixed = (bits.to(torch.int64) * self._mix).sum(-1)
        return mixed if mixed.dim() == 1 else mixed.sum(0)


def _seatings(size: int) -> list[tuple[list[int], list[int]]]:
    """(rows, probes) of each call: all probes, spread from the first row to the last, in turns
    where they do not fit. Which probe is at which row depends on the size."""
    turned = [(size + probe) % NUM_GEMM_PROBES for probe in range(NUM_GEMM_PROBES)]
    if size >= NUM_GEMM_PROBES:
        return [([seat * (size - 1) // (NUM_GEMM_PROBES - 1) for seat in range(NUM_GEMM_PROBES)], turned)]
    groups = [turned[start : start + size] for start in range(0, NUM_GEMM_PROBES, size)]
    return [(list(range(len(group))), group) for group in groups]


def _pad(seats: list[int]) -> list[int]:
    return seats + [0] * (NUM_GEMM_PROBES - len(seats))


def find_split_n(multiply: Multiply, weight: Tensor, sizes: Sequence[int]) -> dict[int, int]:
    """Batch size -> columns to compute first, where that is faster than one call. Empty on a
    CPU."""
    outputs, width = weight.shape
    if weight.device.type != "cuda" or outputs < _MIN_COLUMNS:
        return {}
    weights = copies_of(weight)
    tried = (0, *(outputs * part // 16 // _ALIGNMENT * _ALIGNMENT for part in _SIXTEENTHS))
    found: dict[int, int] = {}
    is_warm = False
    for size in sorted(set(sizes) & set(_SIZES)):
        x = torch.randn(size, width, dtype=weight.dtype, device=weight.device)
        forms = {split_n: TimedGemm(multiply, x, weights, 0, split_n) for split_n in tried}
        if not is_warm:
            _warm_up(forms[0])
            is_warm = True
        best = _fastest(forms)
        if best:
            found[size] = best
    return found


def _warm_up(form: TimedGemm) -> None:
    until = time.monotonic() + _WARM_SECONDS
    while time.monotonic() < until:
        form.microseconds(32)


def _fastest(forms: dict[int, TimedGemm]) -> int:
    """Return the fastest split-N, measured in turns; 0, one call, unless a split is fast enough."""
    times: dict[int, list[float]] = {split_n: [] for split_n in forms}
    replays = max(1, round(1e6 * _ROUND_SECONDS / forms[0].microseconds() / forms[0].num_gemms))
    for _ in range(_ROUNDS):
        for split_n, form in forms.items():
            times[split_n].append(form.microseconds(replays))
    medians = {split_n: statistics.median(each) for split_n, each in times.items()}
    whole = medians.pop(0)
    best = min(medians.values())
    if best > _MIN_GAIN * whole:
        return 0
    return next(split_n for split_n, time_taken in medians.items() if time_taken <= _TIE * best)
