"""The gain of n-gram speculation, and the cost of structured output.

    python benchmarks/features.py ngram
    python benchmarks/features.py structured --requests 200

ngram: one stream, greedy. Deterministic requests with speculation against ordinary ones without, prompt by prompt:
some answers copy much of the prompt, some do not. All variants answer in turn, round after round, and the best
time of each counts. The prompt is in the prefix cache before the time starts. Exits with 1 if a bit differs.

structured: the CPU time of token masks of many JSON schemas, and tok/s with a schema against tok/s of as
many tokens without one.
"""

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast import LLM
from holdfast.bench.stress import submit
from holdfast.core.cancel_token import CancelToken
from holdfast.core.results import Result
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.structured_output import Grammar, StructuredOutput
from holdfast.engine.engine import Engine
from holdfast.engine.input_processor import GrammarFactory
from holdfast.scheduler.policy import Speculation
from measure import Bench

VARIANTS: dict[str, tuple[Speculation, bool]] = {  # speculation, deterministic
    "ordinary": ("off", False),
    "deterministic": ("off", True),
    "deterministic +n-gram": ("ngram", True),
    "ordinary +n-gram": ("ngram", False),
}
_WORDS = ("name", "city", "age", "active", "tags", "score", "kind", "notes", "parts", "owner", "size", "when")
_TOPICS = ("lighthouse", "fishing boat", "library", "violin", "mountain hut", "bakery", "telescope")
_PROMPTS = Path(__file__).with_name("ngram_prompts.json")  # whose answers copy much of the prompt, or do not


def run_ngram(bench: Bench, llm: LLM, rounds: int, num_tokens: int) -> None:
    """Add a row for each prompt, and the geometric means of the gains."""
    for kind, prompts in json.loads(_PROMPTS.read_text(encoding="utf-8")).items():
        gains = []
        for name, text in prompts.items():
            ids = llm.chat_tokens([{"role": "user", "content": text}])
            row = _measure_prompt(llm.engine, ids, rounds, num_tokens)
            bench.row(part="ngram", prompt=name, **row)
            gains.append(row["gain"])
        bench.row(part="ngram, geometric mean", text=kind, gain=math.prod(gains) ** (1 / len(gains)))


def _measure_prompt(engine: Engine, ids: list[int], rounds: int, num_tokens: int) -> dict[str, Any]:
    best: dict[str, float] = {}
    results: dict[str, Result] = {}
    for _ in range(rounds):
        for name, (speculation, deterministic) in VARIANTS.items():
            engine = engine.restarted(replace(engine.scheduler.config, speculation=speculation))
            params = SamplingParams(max_tokens=num_tokens, temperature=0, deterministic=deterministic)
            _answer(engine, ids, replace(params, max_tokens=1))
            started = time.perf_counter()
            result = results[name] = _answer(engine, ids, params)
            speed = len(result.token_ids) / (time.perf_counter() - started)
            best[name] = max(speed, best.get(name, 0.0))
    with_, without = results["deterministic +n-gram"], results["deterministic"]
    assert with_.receipt is not None and without.receipt is not None
    same = with_.receipt["choices"] == without.receipt["choices"]
    return {
        "tokens": len(with_.token_ids),
        **best,
        "gain": best["deterministic +n-gram"] / best["ordinary"],
        "candidates": with_.stats.looked_up,
        "accepted": with_.stats.accepted,
        "error": None if same else "the bits differ with speculation",
    }


def _answer(engine: Engine, ids: list[int], params: SamplingParams) -> Result:
    submit(engine, ids, params)
    result: Result | None = None
    while engine.has_work:
        for update in engine.step():
            result = update.result or result
    assert result is not None
    return result


def draw_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    """A random schema whose answers are short, whatever the model."""
    kinds = ["string", "integer", "boolean", "enum", "array"] + (["object"] * 2 if depth < 2 else [])
    kind = "object" if depth == 0 else rng.choice(kinds)
    if kind == "string":
        return {"type": "string", "maxLength": rng.randint(3, 12)}
    if kind == "integer":
        return {"type": "integer", "minimum": 0, "maximum": rng.choice([9, 150, 5000])}
    if kind == "boolean":
        return {"type": "boolean"}
    if kind == "enum":
        return {"enum": rng.sample(["red", "green", "blue", "small", "large", "none"], 3)}
    if kind == "array":
        return {"type": "array", "items": draw_schema(rng, depth + 2), "minItems": 1, "maxItems": 3}
    names = rng.sample(_WORDS, rng.randint(1, 3))
    properties = {name: draw_schema(rng, depth + 1) for name in names}
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


class TimedGrammars:
    """A grammar compiler whose grammars measure the CPU time of their masks."""

    def __init__(self, grammars: GrammarFactory) -> None:
        self._grammars = grammars
        self.mask_us: list[float] = []

    def compile(self, structured: StructuredOutput, token: CancelToken | None = None) -> Grammar:
        return _TimedGrammar(self._grammars.compile(structured, token), self.mask_us)

    def is_compiled(self, structured: StructuredOutput) -> bool:
        return self._grammars.is_compiled(structured)


class _TimedGrammar:
    def __init__(self, grammar: Grammar, mask_us: list[float]) -> None:
        self._grammar = grammar
        self._mask_us = mask_us

    def masks(self, candidates: Sequence[int], num_masks: int) -> list[bytes | None]:
        started = time.thread_time_ns()
        masks = self._grammar.masks(candidates, num_masks)
        self._mask_us.append((time.thread_time_ns() - started) / 1e3 / num_masks)
        return masks

    def commit(self, token_id: int) -> None:
        self._grammar.commit(token_id)

    def restart(self) -> None:
        self._grammar.restart()

    def count_valid(self, token_ids: Sequence[int]) -> int:
        return self._grammar.count_valid(token_ids)

    @property
    def problem(self) -> str | None:
        return self._grammar.problem


def run_structured(bench: Bench, engine: Engine, count: int) -> None:
    """Add the time of a mask over answers to `count` schemas, and the speed of eight of them at once."""
    rng = random.Random(0)
    requests = []
    for number in range(count):
        prompt = f"Describe a {rng.choice(_TOPICS)} as JSON, number {number}:\n"
        params = SamplingParams(
            max_tokens=400,
            temperature=rng.choice([0.0, 0.8]),
            top_p=rng.choice([1.0, 0.95]),
            seed=number,
            deterministic=True,
            structured=StructuredOutput(json_schema=draw_schema(rng)),
        )
        requests.append((tuple(engine.tokenizer.encode(prompt)), params))
    timed = TimedGrammars(engine.grammars)
    lengths, _ = _timed(engine.restarted(engine.scheduler.config, grammars=timed), requests)
    masks = sorted(timed.mask_us)
    bench.row(
        part="structured, masks",
        schemas=count,
        tokens=sum(lengths),
        mask_us=statistics.median(masks),
        mask_us_p99=masks[len(masks) * 99 // 100],
    )
    engine = engine.restarted(replace(engine.scheduler.config, speculation="off"))
    with_schema, without = _speeds(engine, requests[:8])
    bench.row(
        part="structured, 8 streams", with_schema=with_schema, without=without, ratio=with_schema / without
    )


def _speeds(
    engine: Engine, structured: Sequence[tuple[tuple[int, ...], SamplingParams]]
) -> tuple[float, float]:
    """tok/s of a few concurrent structured answers, and of as many tokens without a schema."""
    _timed(engine, structured)  # compiles the grammars and warms the prefix cache
    lengths, seconds = _timed(engine, structured)
    plain = [
        (prompt, replace(params, structured=None, ignore_eos=True, max_tokens=length))
        for (prompt, params), length in zip(structured, lengths, strict=True)
    ]
    _, without = _timed(engine, plain)
    return sum(lengths) / seconds, sum(lengths) / without


def _timed(
    engine: Engine, requests: Sequence[tuple[tuple[int, ...], SamplingParams]]
) -> tuple[list[int], float]:
    lengths: dict[int, int] = {}
    prepared = [engine.prepare(*one) for one in requests]
    started = time.perf_counter()
    for request in prepared:
        engine.submit(request)
    while engine.has_work:
        for update in engine.step():
            if update.result is not None:
                lengths[update.request_id] = len(update.result.token_ids)
    return [lengths[request.request_id] for request in prepared], time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["ngram", "structured"])
    parser.add_argument("model", nargs="?", help="default: the default model")
    parser.add_argument("--rounds", type=int, default=3, help="of ngram; the best time counts")
    parser.add_argument("--num-tokens", type=int, default=256, help="of ngram: the longest answer")
    parser.add_argument("--requests", type=int, default=200, help="of structured: the number of JSON schemas")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--num-threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="folder for bench-ngram.json or bench-structured.json")
    given = parser.parse_args()
    bench = Bench(f"bench-{given.what}", given.out)
    with LLM(given.model, dtype=given.dtype, num_threads=given.num_threads, certification="startup") as llm:
        if given.what == "ngram":
            run_ngram(bench, llm, given.rounds, given.num_tokens)
        else:
            run_structured(bench, llm.engine, given.requests)
    bench.finish()


if __name__ == "__main__":
    main()
