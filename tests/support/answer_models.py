"""Answer requests of several kinds with some models: `answer_models.py MODEL ...` prints JSON, by model."""

import json
import sys
from pathlib import Path
from typing import Any

from holdfast import LLM, SamplingParams, StructuredOutput

CONFIG: dict[str, Any] = {
    "device": "cpu",
    "kernels": "c",
    "kv_memory": "64MiB",
    "max_pass_tokens": 64,
    "max_num_seqs": 8,
    "certification": "background",
}
SETTINGS = (
    {"temperature": 0.0, "logprobs": 2},
    {"temperature": 0.9, "seed": 5, "top_p": 0.9, "logprobs": 1, "prompt_logprobs": 1},
    {"temperature": 0.7, "seed": 6, "repetition_penalty": 1.2, "frequency_penalty": 0.3, "bad_words": ["a"]},
    {"temperature": 0.8, "seed": 7, "logit_bias": {40: 2.0}, "min_p": 0.05, "top_k": 20, "n": 2},
)
GRAMMAR = StructuredOutput(regex="(yes|no)+")


def answer(model: str) -> dict[str, Any]:
    """Return the answers of a model with all their bits, and its fingerprint."""
    llm = LLM(model, **CONFIG)
    rest = {"max_tokens": 10, "deterministic": True, "ignore_eos": True}
    params = [SamplingParams(**{**rest, **each}) for each in SETTINGS]
    if "think" not in Path(model).name:
        params.append(SamplingParams(max_tokens=6, seed=1, structured=GRAMMAR, deterministic=True))
    results = llm.generate(["The coin is heads and is flipped once more"] * len(params), params)
    embedded = llm.embed(["heads tails"])
    return {
        "answers": [
            repr((one.error, [(c.token_ids, c.logprobs, c.thoughts) for c in one.choices])) for one in results
        ],
        "embedding": [number.hex() for number in embedded[0].embedding],
        "fingerprint": llm.engine.fingerprint.digest,
        "has_torch": "torch" in sys.modules,
    }


if __name__ == "__main__":
    print(json.dumps({model: answer(model) for model in sys.argv[1:]}))
