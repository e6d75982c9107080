"""The row totals an engine pads its passes to, and those a machine is asked about.

On a GPU every total up to 512 is asked about, because any number of rows may be sampled; passes are padded to fewer, so that
a captured graph serves each of them.

    padded to   1 2 4 8 16 .. (every 8) .. 256 .. (every 16) .. 512 .. (steps of an eighth to a quarter) .. max_rows
"""

from holdfast.numerics.ops import Backend

_DENSE = 512  # every total up to here is asked about
MAX_SHORT_TILE_TOKENS = 512  # graphs of up to so many rows attend in short tiles alone
MAX_HEAD_TOKENS = 512  # rows of logits at a time


def is_interpreted(backend: Backend) -> bool:
    """Whether Triton's interpreter computes: every total costs seconds, so few are tried."""
    return backend.recipe.path == "triton" and backend.device.type != "cuda"


def sizes_to_certify(backend: Backend, max_rows: int) -> tuple[int, ...]:
    """What a certificate asks about."""
    if is_interpreted(backend):
        rows = backend.recipe.rows
        return tuple(sorted({1, 2, 8, rows, 2 * rows, max_rows}))
    return gpu_batch_sizes(max_rows) if backend.recipe.path == "triton" else cpu_batch_sizes(max_rows)


def cpu_batch_sizes(max_rows: int) -> tuple[int, ...]:
    """On a CPU, where a padded row costs what a row costs: every small one, then steps of a third at first and of at most an
    eighth from 64 on."""
    steps = [*range(1, 9), *range(12, 33, 4), *range(40, 129, 8), *range(144, 257, 16), *range(288, 513, 32)]
    steps += range(576, max(max_rows, 576) + 1, 64)
    return (*(size for size in steps if size < max_rows), max_rows)


def gpu_batch_sizes(max_rows: int) -> tuple[int, ...]:
    """On a GPU: every total a pass or a head may have."""
    return (*range(1, min(_DENSE, max_rows) + 1), *_large(max_rows))


def padded_batch_sizes(max_rows: int) -> tuple[int, ...]:
    """On a GPU: what passes are padded to, and captured for."""
    small = (1, 2, 4, *range(8, 257, 8), *range(272, _DENSE + 1, 16))
    large = (
        *range(576, 769, 64),
        896,
        1024,
        1152,
        1280,
        *range(1536, 2049, 256),
        *range(2560, 4097, 512),
        *range(5120, max_rows + 1, 1024),
    )
    found = [total for total in (*small, *large) if total <= max_rows]
    return (*found, max_rows) if max_rows > _DENSE and max_rows not in found else tuple(found)


def _large(max_rows: int) -> tuple[int, ...]:
    steps = (*range(_DENSE + 64, 1024, 64), *range(1024, 4097, 128), *range(5120, max_rows + 1, 1024))
    found = [total for total in steps if total <= max_rows]
    return (*found, max_rows) if max_rows > _DENSE and max_rows not in found else tuple(found)
