"""The parts of a response that chat and plain completions share: usage, logprobs, and the `holdfast` object."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from holdfast.core.results import Result
from holdfast.core.step_plan import TokenLogprob
from holdfast.server.call import Call
from holdfast.server.prompts import Prompts

_LEAST = -9999.0  # what OpenAI writes for a token that could not come


def usage(call: Call) -> dict[str, Any]:
    """What was read and written so far."""
    prompt, completion = call.num_prompt_tokens, call.num_completion_tokens
    cached = min(prompt, sum(result.stats.cached_tokens for result in call.results))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def holdfast_object(call: Call) -> dict[str, Any]:
    """How the answer was come by. For a batch of prompts: of all of them, and of each."""
    results = call.results
    if len(results) == 1:
        return _of_one(results[0])
    return {
        "mode": call.mode,
        "seed": results[0].seed,
        "stats": asdict(call.stats),
        "requests": [_of_one(result) for result in results],
    }


def _of_one(result: Result) -> dict[str, Any]:
    about = {"mode": result.determinism, "seed": result.seed, "stats": asdict(result.stats)}
    return about if result.receipt is None else {**about, "receipt": result.receipt}


def chat_logprobs(prompts: Prompts, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Logprobs as the chat endpoint writes them."""

    def shown(token_id: int, logprob: float) -> dict[str, Any]:
        raw = prompts.tokenizer.token_bytes(token_id)
        return {"token": raw.decode("utf-8", "replace"), "logprob": finite(logprob), "bytes": list(raw)}

    content = [
        {**shown(one.token_id, one.logprob), "top_logprobs": [shown(*best) for best in one.top]}
        for one in logprobs
    ]
    return {"content": content, "refusal": None}


class TextLogprobs:
    """Logprobs as the completions endpoint writes them, with the place of every token in the text so far."""

    def __init__(self, prompts: Prompts) -> None:
        self._prompts = prompts
        self._offset = 0

    def write(self, logprobs: Sequence[TokenLogprob | None], first_id: int = 0) -> dict[str, Any]:
        """None stands for a prompt's first token, first_id, which has nothing before it."""
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
    """JSON has no infinity."""
    return logprob if math.isfinite(logprob) else _LEAST
