"""Answer requests of several kinds with some models, to the bit.

`answer_models.py answer MODEL ...` prints JSON, by model; with `stress` the first one also answers with each feature,
and in loads.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from holdfast import LLM, SamplingParams, StructuredOutput
from holdfast.bench.features import find_features
from holdfast.bench.load import LoadScale
from holdfast.bench.stress import result_bits, run_alone, stress_test
from holdfast.engine.config import EngineConfig
from holdfast.engine.start.builder import build

CONFIG: dict[str, Any] = {
    "device": "cpu",
    "kernels": "c",
    "portable": True,
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
PROMPT = "The coin is heads and is flipped once more"
GRAMMAR = StructuredOutput(regex="(yes|no)+")


def answer(model: str) -> dict[str, Any]:
    """Return the answers of a model with all their bits, and its fingerprint."""
    llm = LLM(model, **CONFIG)
    rest = {"max_tokens": 10, "deterministic": True, "ignore_eos": True}
    params = [SamplingParams(**{**rest, **each}) for each in SETTINGS]
    if "think" not in Path(model).name:
        params.append(SamplingParams(max_tokens=6, seed=1, structured=GRAMMAR, deterministic=True))
    results = llm.generate([PROMPT] * len(params), params)
    embedded = llm.embed(["heads tails"])
    return {
        "answers": [
            repr((one.error, [(c.token_ids, c.logprobs, c.thoughts) for c in one.choices])) for one in results
        ],
        "embedding": [number.hex() for number in embedded[0].embedding],
        "fingerprint": llm.engine.fingerprint.digest,
        "has_torch": "torch" in sys.modules,
    }


def digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def stress(model: str) -> dict[str, str]:
    """Return a digest of the answer with each feature, alone; and of those of a few in loads, "unstable" if not
    all are equal."""
    engine = build(EngineConfig(model, **CONFIG))
    features = find_features(engine, engine.tokenizer.encode(PROMPT))
    alone = {one.name: result_bits(run_alone(engine, one.probe())) for one in features}
    scale = LoadScale(max_background=6, max_prompt_len=40, max_tokens=8)
    for feature in features[1::9]:
        summary = stress_test(engine, feature.probe(), ("auto", "verify"), 4, scale=scale)
        if list(summary.results) != [alone[feature.name]]:
            alone[feature.name] = "unstable"
    return {name: digest(bits) for name, bits in alone.items()}


if __name__ == "__main__":
    found = {model: answer(model) for model in sys.argv[2:]}
    print(json.dumps({"answers": found, "stress": stress(sys.argv[2]) if sys.argv[1] == "stress" else {}}))
