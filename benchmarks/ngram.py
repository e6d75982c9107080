"""The gain of n-gram speculation, in one greedy stream.

    python benchmarks/ngram.py --out docs/data

Deterministic requests with speculation against ordinary ones without, prompt by prompt: some answers copy much of
the prompt, some do not. All variants answer in turn, round after round, and the best time of each counts. The
prompt is in the prefix cache before the time starts. Exits with 1 if a bit differs.
"""

import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast import LLM
from holdfast.bench.stress import submit
from holdfast.core.results import Result
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.engine import Engine
from holdfast.scheduler.policy import Speculation
from measure import Bench, new_parser

VARIANTS: dict[str, tuple[Speculation, bool]] = {  # speculation, deterministic
    "ordinary": ("off", False),
    "deterministic": ("off", True),
    "deterministic +n-gram": ("ngram", True),
    "ordinary +n-gram": ("ngram", False),
}
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


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("model", nargs="?", help="default: the default model")
    parser.add_argument("--rounds", type=int, default=3, help="the best time counts")
    parser.add_argument("--num-tokens", type=int, default=256, help="the longest answer")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--num-threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="folder for bench-ngram.json")
    given = parser.parse_args()
    bench = Bench("bench-ngram", given.out)
    with LLM(given.model, dtype=given.dtype, num_threads=given.num_threads, certification="startup") as llm:
        run_ngram(bench, llm, given.rounds, given.num_tokens)
    bench.finish()


if __name__ == "__main__":
    main()
