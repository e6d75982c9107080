"""Results as the command line writes them: JSON lines, and tables of logprobs."""

import json
import struct
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from holdfast.cli.show import stderr
from holdfast.core.results import Choice, Result
from holdfast.core.step_plan import TokenLogprob


def bits(value: float) -> str:
    """An fp32 value's bits, as eight hexadecimal digits: what determinism is judged by."""
    return struct.pack(">f", value).hex()


def as_json(result: Result) -> str:
    """One line. Everything a second run is compared with is in it.

    As on a `Result`, the first choice's fields stand on top as well; "choices" has all of them, however many there are.
    """
    choices = [_choice(one) for one in result.choices]
    content = {
        **choices[0],
        "choices": choices,
        "determinism": result.determinism,
        "seed": result.seed,
        "prompt_tokens": len(result.prompt_token_ids),
        "prompt_logprobs": _logprobs(result.prompt_logprobs),
        "stats": asdict(result.stats),
        "error": result.error,
        "fingerprint": None if result.receipt is None else result.receipt["fingerprint"]["digest"],
        "receipt": result.receipt,
    }
    return json.dumps(content, ensure_ascii=False)


def _choice(one: Choice) -> dict[str, Any]:
    return {
        "text": one.text,
        "token_ids": list(one.token_ids),
        "finish_reason": one.finish_reason,
        "logprobs": _logprobs(one.logprobs),
        "thoughts": [asdict(thought) for thought in one.thoughts],
    }


def _logprobs(values: Sequence[TokenLogprob | None] | None) -> list[dict[str, Any] | None] | None:
    return None if values is None else [None if one is None else _logprob(one) for one in values]


def _logprob(one: TokenLogprob) -> dict[str, Any]:
    return {
        "token_id": one.token_id,
        "logprob": one.logprob,
        "bits": bits(one.logprob),
        "top": [{"token_id": id_, "logprob": value, "bits": bits(value)} for id_, value in one.top],
    }


def show_logprobs(of: str, logprobs: Sequence[TokenLogprob | None]) -> None:
    """A table on stderr, one row a token that has a logprob."""
    from rich.table import Table

    table = Table(title=f"logprobs of {of}", title_justify="left")
    table.add_column("token id", justify="right")
    table.add_column("logprob", justify="right")
    table.add_column("bits")
    table.add_column("best (id: logprob)")
    for one in logprobs:
        if one is not None:
            best = "  ".join(f"{id_}: {value:.4f}" for id_, value in one.top)
            table.add_row(str(one.token_id), f"{one.logprob:.6f}", bits(one.logprob), best)
    stderr().print(table)
