"""A progress bar on stderr for a batch of prompts."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.core.results import Result
from holdfast.errors import InvalidRequest

UseTqdm = bool | Callable[..., Any] | None

_TITLE = "Processed prompts"


@contextmanager
def progress_bar(num_prompts: int, use_tqdm: UseTqdm) -> Iterator[Callable[[Result], None]]:
    """Yields a function to call with each result.

    use_tqdm: True shows a bar, False none. None shows one for several prompts, if stderr is a
    terminal. A callable is used as `tqdm.tqdm` is.
    """
    if not (use_tqdm is None or isinstance(use_tqdm, bool) or callable(use_tqdm)):
        raise InvalidRequest(f"use_tqdm must be true, false or a tqdm class, not {type(use_tqdm).__name__}")
    if use_tqdm is None:
        use_tqdm = num_prompts > 1 and sys.stderr.isatty()
    if use_tqdm is False or num_prompts == 0:
        yield lambda result: None
    elif use_tqdm is True:
        with _rich_bar(num_prompts) as advance:
            yield advance
    else:
        bar = use_tqdm(total=num_prompts, desc=_TITLE, dynamic_ncols=True)
        try:
            yield lambda result: bar.update(1)
        finally:
            bar.close()


@contextmanager
def _rich_bar(num_prompts: int) -> Iterator[Callable[[Result], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    started, num_tokens = time.perf_counter(), 0
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[speed]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(_TITLE, total=num_prompts, speed="")

        def advance(result: Result) -> None:
            nonlocal num_tokens
            num_tokens += sum(len(choice.token_ids) for choice in result.choices)
            speed = num_tokens / max(time.perf_counter() - started, 1e-9)
            progress.update(task, advance=1, speed=f"{speed:,.0f} tok/s")

        yield advance
