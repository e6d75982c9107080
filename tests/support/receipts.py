"""Receipts for tests. As a program it prints one of the default model."""

import json
from collections.abc import Sequence
from typing import Any

from holdfast.core.request import Request
from holdfast.core.results import Choice, Determinism, Result, Stats
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import TokenLogprob
from holdfast.engine.llm import LLM
from holdfast.receipts.fingerprint import Fingerprint
from holdfast.receipts.receipt import make_receipt

PARTS = Fingerprint(
    {
        "weights": "0" * 64,
        "config": {},
        "tokenizer": "1" * 64,
        "chat_template": None,
        "dtype": "float32",
        "recipe": {"path": "torch"},
        "device": {"kind": "cpu", "name": "abacus", "instructions": "2" * 64},
        "settings": {
            "threads": 2,
            "matmul_precision": "highest",
            "cpu_capability": "DEFAULT",
            "environment": {},
        },
        "libraries": {"holdfast": "0"},
    }
)


def receipt_of(
    params: SamplingParams, *choices: tuple[int, ...], scored: int | None = None
) -> dict[str, Any]:
    """A receipt without an engine. `scored`: the first token of [1, 2, 3] with a logprob."""
    answers = tuple(Choice("", ids, "length") for ids in choices or ((4, 5),))
    mode: Determinism = "verified" if params.deterministic else "none"
    if scored is None and params.prompt_logprobs is not None:
        scored = 1
    seed = 11 if params.seed is None else params.seed
    scores = None if scored is None else tuple(TokenLogprob(id_, -id_ / 4) for id_ in (1, 2, 3)[scored:])
    result = Result((1, 2, 3), answers, seed=seed, determinism=mode, stats=Stats(), prompt_logprobs=scores)
    request = Request(1, result.prompt_token_ids, params, result.seed, score_from=scored)
    logprobs = [[TokenLogprob(id_, -id_ / 3) for id_ in one.token_ids] for one in answers]
    return make_receipt(PARTS, "a" * 64, "some/model", request, result, logprobs).as_dict()


def ask(llm: LLM, prompt: str | Sequence[int], params: SamplingParams) -> dict[str, Any]:
    """One answer's receipt."""
    receipt = llm.generate([prompt], params)[0].receipt
    assert receipt is not None
    return receipt


if __name__ == "__main__":
    asked = SamplingParams(max_tokens=24, temperature=0.8, deterministic=True, ignore_eos=True, logprobs=2)
    print(json.dumps(ask(LLM(kv_memory="64MiB"), "The tide went out", asked)))
