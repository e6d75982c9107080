"""Response fields that several routes share: usage, logprobs, and the `holdfast` object."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from holdfast.core.results import Result
from holdfast.core.step_plan import TokenLogprob
from holdfast.server.call import Call
from holdfast.server.prompts import Prompts

_MIN_LOGPROB = -9999.0  # OpenAI's value for an impossible token


def usage(call: Call) -> dict[str, Any]:
    """Token counts so far."""
    prompt, completion = call.num_prompt_tokens, call.num_completion_tokens
    cached = min(prompt, sum(result.stats.cached_tokens for result in call.results))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def holdfast_object(call: Call) -> dict[str, Any]:
    """Determinism mode, seed and stats. For a batch of prompts: of all together, and of each one."""
    results = call.results
    if len(results) == 1:
        return _request_details(results[0])
    return {
        "mode": call.mode,
        "seed": results[0].seed,
        "stats": asdict(call.stats),
        "requests": [_request_details(result) for result in results],
    }


def _request_details(result: Result) -> dict[str, Any]:
    details = {"mode": result.determinism, "seed": result.seed, "stats": asdict(result.stats)}
    return details if result.receipt is None else {**details, "receipt": result.receipt}


def chat_logprobs(prompts: Prompts, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Logprobs in the format of chat completions."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        raw = prompts.tokenizer.token_bytes(token_id)
        return {"token": raw.decode("utf-8", "replace"), "logprob": finite(logprob), "bytes": list(raw)}

    content = [
        {**entry(one.token_id, one.logprob), "top_logprobs": [entry(*best) for best in one.top]}
        for one in logprobs
    ]
    return {"content": content, "refusal": None}


class TextLogprobs:
    """Logprobs in the format of completions, with the offset of every token in the text."""

    def __init__(self, prompts: Prompts) -> None:
        self._prompts = prompts
        self._offset = 0

    def write(self, logprobs: Sequence[TokenLogprob | None], first_id: int = 0) -> dict[str, Any]:
        """Format logprobs. None is the prompt's first token, first_id, which has no logprob."""
        text = self._prompts.token_text
        tokens = [text(first_id if one is None else one.token_id) for one in logprobs]
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(token)
        return {
            "tokens": tokens,
            "token_logprobs": [None if one is None else finite(one.logprob) for one in logprobs],
            "top_logprobs": [
                None if one is None else {text(id_): finite(value) for id_, value in one.top}
                for one in logprobs
            ],
            "text_offset": offsets,
        }


def finite(logprob: float) -> float:
    """JSON has no infinity: replace it with OpenAI's minimum."""
    return logprob if math.isfinite(logprob) else _MIN_LOGPROB
