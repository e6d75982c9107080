"""Results as the command line writes them: JSON lines, and a table of logprobs."""

import json
import struct
from dataclasses import asdict

from holdfast.cli.show import stderr
from holdfast.core.plan import TokenLogprob
from holdfast.core.result import Result


def bits(value: float) -> str:
    """An fp32 value's bits, as eight hexadecimal digits: what determinism is judged by."""
    return struct.pack(">f", value).hex()


def as_json(result: Result) -> str:
    """One line. Everything a second run is compared with is in it."""
    content = {
        "text": result.text,
        "token_ids": list(result.token_ids),
        "finish_reason": result.finish_reason,
        "determinism": result.determinism,
        "seed": result.seed,
        "prompt_tokens": len(result.prompt_token_ids),
        "logprobs": None if result.logprobs is None else [_logprob(one) for one in result.logprobs],
        "stats": asdict(result.stats),
        "error": result.error,
        "receipt": result.receipt,
    }
    return json.dumps(content, ensure_ascii=False)


def _logprob(one: TokenLogprob) -> dict[str, object]:
    return {
        "token_id": one.token_id,
        "logprob": one.logprob,
        "bits": bits(one.logprob),
        "top": [{"token_id": id_, "logprob": value, "bits": bits(value)} for id_, value in one.top],
    }


def show_logprobs(number: int, result: Result) -> None:
    """A table on stderr, one row a token."""
    from rich.table import Table

    table = Table(title=f"logprobs of answer {number}", title_justify="left")
    table.add_column("token id", justify="right")
    table.add_column("logprob", justify="right")
    table.add_column("bits")
    table.add_column("best (id: logprob)")
    for one in result.logprobs or ():
        best = "  ".join(f"{id_}: {value:.4f}" for id_, value in one.top)
        table.add_row(str(one.token_id), f"{one.logprob:.6f}", bits(one.logprob), best)
    stderr().print(table)
