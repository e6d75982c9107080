"""How many slices K has in each product of a model: the fewest with which every row total gives the same bits.

A library splits K by the number of rows. Where it does not, its own product is the recipe (0 slices); where it does, K is cut
in 1, 2, 4 or 8 slices whose fp32 sums are added in order. Which is asked of the machine, with random weights of the shape,
before any weights are loaded: fewest first and never by time, so that the same machine always makes the same choice. Columns
of the library's own product may be cut by time (`column_cuts`), where the bits are those of the product in one piece.

Rounding hides differences, so half of the probes cancel exactly: their true product is zero, and what is left is nothing but
the rounding of the order in which it was summed.

    weight  [ A | A in another order ]        probe  [ x | -x in the same other order ]
"""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from holdfast.certification.gemm_timing import PLAIN, TIMED_ROWS, Multiply, time_products
from holdfast.certification.probes import NUM_PROBES, bits_of
from holdfast.certification.split_n import find_cuts
from holdfast.numerics.atomic_write import write_whole
from holdfast.numerics.batch_sizes import MAX_HEAD_TOKENS, gpu_batch_sizes, padded_batch_sizes
from holdfast.numerics.cache_dir import cache_folder

_log = logging.getLogger(__name__)
_FORMAT = 2
_SLICES = (0, 1, 2, 4, 8)
# The same list whatever the largest pass, so that the choice, and with it the fingerprint, does not depend on it.
TOTALS = gpu_batch_sizes(8192)
_DEVIATION = 0.02
_LEAST_WIDTH = 16  # of a slice

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class GemmShape:
    """y = x W^T with W [N, K]. wide: its sums are wanted in fp32, for a bias or as logits, so K has at least one slice."""

    name: str
    out_features: int
    in_features: int
    wide: bool = False
    is_head: bool = False

    @property
    def key(self) -> tuple[int, int]:
        return self.out_features, self.in_features


@dataclass(frozen=True)
class SplitChoice:
    """What the machine said of one shape: the slices, the totals that gave the reference's bits with them, how many different
    answers the library's own product has over all totals, what the recipe costs against it, and where columns are cut."""

    name: str
    out_features: int
    in_features: int
    slices: int
    totals: tuple[int, ...]
    num_tried: int
    plain_classes: int
    costs: tuple[tuple[int, float], ...] = ()  # (rows, time of the recipe / time of the plain call)
    cuts: tuple[tuple[int, int], ...] = ()  # (rows, columns multiplied first)

    @property
    def agrees(self) -> bool:
        return len(self.totals) == self.num_tried


def choose_slices(
    shapes: Sequence[GemmShape],
    multiply: Multiply,
    dtype: torch.dtype,
    device: torch.device,
    about: Mapping[str, object],
    *,
    reference_rows: int,
    totals: Sequence[int] = TOTALS,
    progress: Progress | None = None,
    anew: bool = False,
) -> tuple[SplitChoice, ...]:
    """A choice for every shape, from the cache or made now. `about` is all else the answer depends on: device, libraries,
    settings; anew: asked even if it is kept."""
    merged = _merged(shapes)
    subject = {
        "format": _FORMAT,
        "dtype": str(dtype),
        "shapes": [[one.name, *one.key, one.wide, one.is_head] for one in merged],
        "rows": reference_rows,
        "totals": list(totals),
        **about,
    }
    key = hashlib.sha256(json.dumps(subject, sort_keys=True).encode()).hexdigest()
    known = None if anew else _load(key)
    if known is not None:
        return known
    found = []
    with torch.inference_mode():
        for number, shape in enumerate(merged):
            tried = [total for total in totals if total <= MAX_HEAD_TOKENS] if shape.is_head else list(totals)
            found.append(_choose(shape, multiply, dtype, device, tried, reference_rows))
            if progress is not None:
                progress(number + 1, len(merged))
    _save(key, found)
    return tuple(found)


def slices_of(choices: Sequence[SplitChoice]) -> dict[tuple[int, int], int]:
    return {(one.out_features, one.in_features): one.slices for one in choices}


def cuts_of(choices: Sequence[SplitChoice]) -> dict[tuple[int, int], dict[int, int]]:
    return {(one.out_features, one.in_features): dict(one.cuts) for one in choices if one.cuts}


def library_multiply(x: Tensor, weight: Tensor, slices: int, cut: int = 0) -> Tensor:
    """The products as the triton path makes them: with few rows by a kernel of its own, unless they are plain."""
    from holdfast.numerics.backends.triton.gemm import multiply
    from holdfast.numerics.ops import Linear

    out_features, in_features = weight.shape
    cuts = {x.shape[0]: cut} if cut else {}
    linear = Linear(weight, None, in_features, out_features, weight.dtype, max(0, slices), cuts)
    return multiply(x, linear, vendor_gemm=slices == PLAIN)


def _merged(shapes: Sequence[GemmShape]) -> list[GemmShape]:
    """One entry a shape: products that share it share the recipe."""
    found: dict[tuple[int, int], GemmShape] = {}
    for one in shapes:
        before = found.get(one.key)
        if before is None:
            found[one.key] = one
        else:
            name = before.name if one.name in before.name.split("+") else f"{before.name}+{one.name}"
            wide, is_head = before.wide or one.wide, before.is_head and one.is_head
            found[one.key] = GemmShape(name, *one.key, wide, is_head)
    return list(found.values())


def _choose(
    shape: GemmShape,
    multiply: Multiply,
    dtype: torch.dtype,
    device: torch.device,
    totals: list[int],
    reference_rows: int,
) -> SplitChoice:
    bench = _Bench(shape, multiply, dtype, device, totals, reference_rows)
    _, classes = bench.ask(PLAIN)
    best: tuple[int, list[int]] | None = None
    for slices in _SLICES[1:] if shape.wide else _SLICES:
        if slices and (shape.in_features % slices or shape.in_features // slices < _LEAST_WIDTH):
            continue
        agreeing, _ = bench.ask(slices)
        if best is None or len(agreeing) > len(best[1]):
            best = slices, agreeing
        if len(agreeing) == len(totals):
            break
    assert best is not None, f"K is {shape.in_features}: too short to be multiplied"
    slices, agreeing = best
    cuts = bench.cuts(agreeing) if slices == 0 else {}
    timed = [rows for rows in TIMED_ROWS if rows <= totals[-1]]
    costs = time_products(multiply, bench.weight, slices, cuts, timed)
    return SplitChoice(
        shape.name, *shape.key, slices, tuple(agreeing), len(totals), classes, costs, tuple(cuts.items())
    )


class _Bench:
    """Random weights of one shape, probes for them, and neighbours that are huge and tiny in turn."""

    def __init__(
        self,
        shape: GemmShape,
        multiply: Multiply,
        dtype: torch.dtype,
        device: torch.device,
        totals: list[int],
        reference_rows: int,
    ) -> None:
        generator = torch.Generator(device).manual_seed(shape.in_features)

        def random(*size: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.empty(size, dtype=dtype, device=device).normal_(generator=generator)

        width, half = shape.in_features, shape.in_features // 2
        order = torch.randperm(half, generator=generator, device=device)
        self.weight = random(*shape.key).mul_(_DEVIATION)
        self.weight[:, half : 2 * half] = self.weight[:, :half].index_select(1, order)
        probes = random(NUM_PROBES, width, dtype=torch.float32)
        probes[1::2] *= torch.exp2(
            random(NUM_PROBES // 2, width, dtype=torch.float32) * 2
        )  # of very different size
        probes = probes.to(dtype)
        cancelling = slice(NUM_PROBES // 2, None)
        probes[cancelling, half:] = 0
        probes[cancelling, half : 2 * half] = -probes[cancelling, :half].index_select(1, order)
        self._probes = probes
        most = max(*totals, reference_rows)
        self._neighbours = random(most, width)
        self._neighbours[::2] *= 1e3
        self._neighbours[1::2] *= 1e-3
        self._mix = torch.randint(1, 1 << 62, (shape.out_features,), generator=generator, device=device)
        self._multiply, self._totals, self._reference_rows = multiply, totals, reference_rows

    def cuts(self, totals: Sequence[int]) -> dict[int, int]:
        """Where the library's own product is faster in two, among these totals, and has the bits of the reference."""
        padded = frozenset(padded_batch_sizes(self._totals[-1]))
        found = find_cuts(self._multiply, self.weight, [total for total in totals if total in padded])
        agreeing, _ = self.ask(0, found) if found else ((), 0)
        return {rows: cut for rows, cut in found.items() if rows in agreeing}

    def ask(self, slices: int, cuts: Mapping[int, int] | None = None) -> tuple[list[int], int]:
        """The totals that give the reference's bits, and how many different answers there are. Read from the device once.

        With cuts only theirs are asked; the reference is never cut.
        """
        device, totals = self.weight.device, self._totals if cuts is None else list(cuts)
        calls = [(number, *seating) for number, total in enumerate(totals) for seating in _seatings(total)]
        seats = torch.tensor([_filled(one) for _, one, _ in calls], device=device)  # [calls, probes]
        probes = torch.tensor([_filled(one) for _, _, one in calls], device=device)
        differs = torch.zeros(len(totals), dtype=torch.bool, device=device)
        digests = torch.zeros(len(totals), NUM_PROBES, dtype=torch.int64, device=device)
        _, seated, planted = 0, *_seatings(self._reference_rows)[0]
        here = torch.tensor([seated, planted], device=device)
        reference = self._product(
            self._reference_rows, here[0], here[1], slices
        )  # [.., probes, N], planted's order
        reference = torch.empty_like(reference).index_copy_(-2, here[1], reference)
        for call, (number, sat, _) in enumerate(calls):
            at, which = seats[call, : len(sat)], probes[call, : len(sat)]
            found = self._product(totals[number], at, which, slices, (cuts or {}).get(totals[number], 0))
            differs[number] |= (found != reference.index_select(-2, which)).any()
            digests[number].index_copy_(0, which, self._digest(found))
        agreeing = [total for total, other in zip(totals, differs.tolist(), strict=True) if not other]
        return agreeing, len({tuple(digest) for digest in digests.tolist()})

    def _product(self, total: int, at: Tensor, which: Tensor, slices: int, cut: int = 0) -> Tensor:
        """The probes' rows of a product of so many, as integers."""
        x = self._neighbours[:total].clone()
        x.index_copy_(0, at, self._probes.index_select(0, which))
        return bits_of(self._multiply(x, self.weight, slices, cut).index_select(-2, at))

    def _digest(self, bits: Tensor) -> Tensor:
        """One number a probe: [.., probes, N] -> [probes]."""
        mixed = (bits.to(torch.int64) * self._mix).sum(-1)
        return mixed if mixed.dim() == 1 else mixed.sum(0)


def _seatings(total: int) -> list[tuple[list[int], list[int]]]:
    """(rows, probes) of each call: all probes, spread from the first row to the last; in turns where they do not fit. Who
    sits where depends on the total."""
    turned = [(total + probe) % NUM_PROBES for probe in range(NUM_PROBES)]
    if total >= NUM_PROBES:
        return [([seat * (total - 1) // (NUM_PROBES - 1) for seat in range(NUM_PROBES)], turned)]
    groups = [turned[start : start + total] for start in range(0, NUM_PROBES, total)]
    return [(list(range(len(group))), group) for group in groups]


def _filled(seats: list[int]) -> list[int]:
    return seats + [0] * (NUM_PROBES - len(seats))


def _path(key: str) -> Path:
    return cache_folder() / "recipes" / f"{key}.json"


def _load(key: str) -> tuple[SplitChoice, ...] | None:
    try:
        content = json.loads(_path(key).read_text())
        if content["key"] != key:
            return None
        return tuple(_choice_of(one) for one in content["choices"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _choice_of(one: Mapping[str, object]) -> SplitChoice:
    totals, costs, slices, cuts = one["totals"], one["costs"], one["slices"], one["cuts"]
    if not (isinstance(totals, list) and isinstance(costs, list) and isinstance(cuts, list)):
        raise ValueError("a choice of another kind")
    if slices not in _SLICES:
        raise ValueError("a choice of other slices")
    return SplitChoice(
        name=str(one["name"]),
        out_features=int(str(one["out_features"])),
        in_features=int(str(one["in_features"])),
        slices=int(str(slices)),
        totals=tuple(int(total) for total in totals),
        num_tried=int(str(one["num_tried"])),
        plain_classes=int(str(one["plain_classes"])),
        costs=tuple((int(rows), float(ratio)) for rows, ratio in costs),
        cuts=tuple((int(rows), int(first)) for rows, first in cuts),
    )


def _save(key: str, choices: Sequence[SplitChoice]) -> None:
    """Keep them for the next start. A disk that does not take them costs time at the next start, nothing else."""
    try:
        write_whole(
            _path(key), json.dumps({"key": key, "choices": [asdict(one) for one in choices]}, indent=1)
        )
    except OSError as error:
        _log.warning("the recipes could not be kept: %s", error)
