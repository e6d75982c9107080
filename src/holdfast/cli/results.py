"""Results as the command line writes them: JSON, tables of logprobs, summaries, receipt files."""

import json
import os
import re
import struct
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from holdfast.cli.console import stderr
from holdfast.core.results import Choice, Result
from holdfast.core.step_plan import TokenLogprob
from holdfast.errors import InvalidRequest

_LINE_ENDS = re.compile("[\x85\u2028\u2029]")  # those that JSON leaves as they are


def json_line(content: object) -> str:
    """Return JSON that every reader takes for one line: Unicode's line ends are escaped too."""
    text = json.dumps(content, ensure_ascii=False)
    return _LINE_ENDS.sub(lambda end: f"\\u{ord(end[0]):04x}", text)


def bits(value: float) -> str:
    """Return the bits of an fp32 value as eight hexadecimal digits. Determinism is judged by them."""
    return struct.pack(">f", value).hex()


def as_json(result: Result, *, with_receipt: bool = False) -> str:
    """Return one line. The fields of the only choice are at the top level; of several, in "choices"."""
    choices = [_choice(one) for one in result.choices]
    content = {
        **(choices[0] if len(choices) == 1 else {"choices": choices}),
        "determinism": result.determinism,
        "seed": result.seed,
        "prompt_tokens": len(result.prompt_token_ids),
        "prompt_logprobs": _logprobs(result.prompt_logprobs),
        "stats": asdict(result.stats),
        "error": result.error,
        "fingerprint": None if result.receipt is None else result.receipt["fingerprint"]["digest"],
    }
    if with_receipt:
        content["receipt"] = result.receipt
    return json_line(content)


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


def show_logprobs(title: str, logprobs: Sequence[TokenLogprob | None]) -> None:
    from rich.table import Table

    table = Table(title=f"logprobs of {title}", title_justify="left")
    table.add_column("token id", justify="right")
    table.add_column("logprob", justify="right")
    table.add_column("bits")
    table.add_column("best (id: logprob)")
    for one in logprobs:
        if one is not None:
            best = "  ".join(f"{id_}: {value:.4f}" for id_, value in one.top)
            table.add_row(str(one.token_id), f"{one.logprob:.6f}", bits(one.logprob), best)
    stderr().print(table)


def mode_line(result: Result) -> str:
    mode = "ordinary" if result.determinism == "none" else result.determinism
    choices = result.choices
    several = f"{len(choices)} choices · " if len(choices) > 1 else ""
    num_tokens = sum(len(choice.token_ids) for choice in choices)
    ends = ", ".join(choice.finish_reason for choice in choices)
    return f"{mode} · {several}{num_tokens} tokens · seed {result.seed} · {ends}"


def stats_line(result: Result) -> str:
    num_cached = result.stats.cached_tokens
    cached = f", {num_cached} cached" if num_cached else ""
    return f"{mode_line(result)} · prompt {len(result.prompt_token_ids)} tokens{cached}"


def full_stats(result: Result) -> str:
    stats = result.stats
    return (
        f"{mode_line(result)} · candidates {stats.candidates} ({stats.looked_up} from n-grams) = accepted "
        f"{stats.accepted} + rolled back {stats.rolled_back} · canonical tokens {stats.canonical_tokens} · windows "
        f"{stats.windows} · passes {stats.fast_passes} fast, {stats.canonical_passes} canonical · prompt "
        f"{len(result.prompt_token_ids)} tokens, {stats.cached_tokens} cached · preemptions {stats.preemptions}"
        f"{_thought_counts(result)}"
    )


def _thought_counts(result: Result) -> str:
    thoughts = [thought for choice in result.choices for thought in choice.thoughts]
    if not thoughts:
        return ""
    written = sum(bool(thought.token_ids) for thought in thoughts)
    stats = result.stats
    return (
        f" · thoughts {written}, trivial {len(thoughts) - written}, guessed {stats.guessed}, of them right "
        f"{stats.guessed_right}"
    )


def require_writable(path: Path) -> None:
    """Refuse a receipt file that cannot be written before anything is generated."""
    if path.is_dir() or not path.parent.is_dir():
        what = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise InvalidRequest(f"the receipt {path} cannot be written: {what}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InvalidRequest(f"the receipt {path} cannot be written: permission denied")


def write_receipts(path: Path, results: Sequence[Result]) -> None:
    """Write one JSON object a line, as `holdfast replay` reads them: null if an answer failed."""
    lines = [f"{json.dumps(result.receipt)}\n" for result in results]
    try:
        path.write_text("".join(lines), encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"the receipt {path} cannot be written: {error.strerror}") from error


def drop_prompt(result: Result) -> Result:
    from holdfast.receipts.receipt import redact

    return (
        result if result.receipt is None else replace(result, receipt=redact(result.receipt, keep_salt=True))
    )
