"""What the documentation measures of thinking models beside `holdfast eval`, a row of JSON each.

    python benchmarks/thinking/eval.py general DIR    # 200 general prompts: thoughts, and the backbone's bits
    python benchmarks/thinking/eval.py rounds DIR     # prefill with predicted thoughts against chunk by chunk
    python benchmarks/thinking/eval.py cost DIR       # tokens with thinking, without, and of a plain folder

DIR is a folder of `holdfast train thinking`, or `coin`, `smollm2-coin`. --device cuda for a GPU.
"""

import argparse
import copy
import json
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from holdfast.core.results import Result
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.engine import Engine
from holdfast.engine.llm.llm import LLM
from holdfast.models.adapter import is_adapter
from holdfast.models.locate import locate
from holdfast.thinking.config import CONFIG_FILE, WEIGHTS_FILE
from holdfast.thinking.log import thought_logs
from holdfast_thinking.data.words import read_words
from holdfast_thinking.eval.model import EvalModel, EvalPrompt, OpenLLM
from holdfast_thinking.grammar.words import FEW_NAMES, SENTENCES
from holdfast_thinking.tasks.parity import STATES

Row = dict[str, Any]
DENSITIES = {"none": None, "rare": 40, "few": 12, "medium": 3, "dense": 0}  # filler sentences before an event
VARIANTS = ("thinks", "does not think", "plain folder")


def eval_prompts() -> list[str]:
    """Draw 200 prompts about which nothing is to be thought; none is of the training's forms or subjects."""
    general = read_words("general")
    every = [form.format(s=subject) for form in general.EVAL_FORMS for subject in general.EVAL_SUBJECTS]
    return random.Random("general evaluation").sample(every, 200)


def measure_general(
    model: EvalModel, open_llm: OpenLLM, prompts: list[str] | None = None, max_tokens: int = 48
) -> Row:
    """Count the prompts about which nothing is thought. An adapter is compared with its backbone.

    `same_bits`: of the silent ones, answers with the tokens and logprob bits of the backbone.
    """
    prompts = eval_prompts() if prompts is None else prompts
    own = _answers(model.llm, prompts, max_tokens)
    thoughts = [[each.text for each in one.thoughts if each.token_ids] for one in own]
    same = None
    if is_adapter(model.folder):
        base = _answers(open_llm(locate(str(model.folder)).path), prompts, max_tokens)
        pairs = zip(own, base, thoughts, strict=True)
        same = sum(_bits(one) == _bits(other) and not said for one, other, said in pairs)
    return {
        "count": len(prompts),
        "silent": sum(not said for said in thoughts),
        "same_bits": same,
        "thoughts": [said[0] for said in thoughts if said][:10],
    }


def _answers(llm: LLM, prompts: list[str], max_tokens: int) -> list[Result]:
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, logprobs=1, deterministic=True)
    return llm.chat([[{"role": "user", "content": each}] for each in prompts], params, use_tqdm=False)


def _bits(result: Result) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Tokens and the bits of their logprobs."""
    logprobs = result.choices[0].logprobs or ()
    return tuple(result.token_ids), tuple(float(each.logprob).hex() for each in logprobs)


def measure_rounds(
    model: EvalModel, count: int = 12, most_tokens: int = 600, warm_ups: int = 2
) -> Iterator[Row]:
    """Time prefill with predicted thoughts against chunk by chunk, one request at a time."""
    logs = thought_logs(model.llm.engine.scheduler.config.new_extension)
    assert logs is not None
    by_chunk = with_schedule(model.llm, new_extension=replace(logs, max_guesses=0))
    for density in ("rare", "few", "medium", "dense"):
        prompts = coin_texts(model, density, count + warm_ups, most_tokens)
        timed = [
            [_timed(llm, each, model.params(each)) for llm in (model.llm, by_chunk)] for each in prompts
        ][warm_ups:]
        own, other = ([result for _, result in each] for each in zip(*timed, strict=True))
        ms = [1000 * median(seconds for seconds, _ in each) for each in zip(*timed, strict=True)]
        yield {
            "density": density,
            "prompt_tokens": fmean(len(each.token_ids) for each in prompts[warm_ups:]),
            "chunks": fmean(len(each.token_ids) // model.chunk for each in prompts[warm_ups:]),
            "thoughts": fmean(sum(bool(thought.token_ids) for thought in each.thoughts) for each in own),
            "rounds": fmean(each.stats.prefill_passes for each in own),
            "rounds_by_chunk": fmean(each.stats.prefill_passes for each in other),
            "ms": ms[0],
            "ms_by_chunk": ms[1],
            "same_answers": all(
                (a.token_ids, a.thoughts) == (b.token_ids, b.thoughts)
                for a, b in zip(own, other, strict=True)
            ),
            "right": sum(model.is_right(*each) for each in zip(prompts[warm_ups:], own, strict=True)),
        }


def with_schedule(llm: LLM, **changes: Any) -> LLM:
    """Return the same engine with other scheduler settings. Only one of the two may run at a time."""
    assert not llm.engine.scheduler.config.prefix_cache, "the two write to the same pages"
    twin = copy.copy(llm)
    twin.engine = llm.engine.restarted(replace(llm.engine.scheduler.config, **changes))
    return twin


def _timed(llm: LLM, prompt: EvalPrompt, params: SamplingParams) -> tuple[float, Result]:
    """Return the seconds of one request alone, and its result."""
    started = time.perf_counter()
    (result,) = llm.generate([prompt.token_ids], [params], use_tqdm=False, want_receipts=False)
    return time.perf_counter() - started, result


def coin_texts(model: EvalModel, density: str, count: int, most_tokens: int) -> list[EvalPrompt]:
    """A coin and as many events as fit; with density "none" only filler sentences."""
    rng = np.random.default_rng(11)
    return [_coin_text(model, DENSITIES[density], rng, most_tokens) for _ in range(count)]


def _coin_text(model: EvalModel, gap: int | None, rng: np.random.Generator, most_tokens: int) -> EvalPrompt:
    encode = model.tokenizer.encode
    state = int(rng.integers(2))
    asked = list(encode(" What's the state? A:", add_special_tokens=False).ids)
    ids = list(encode(f"A coin's state is {STATES[state]}.", add_special_tokens=False).ids)
    while True:
        words = "".join(f" {rng.choice(SENTENCES)}" for _ in range(1 if gap is None else gap))
        flips = gap is not None and rng.random() < 0.7
        if gap is not None:
            words += f" {rng.choice(FEW_NAMES)}" + (
                " flips the coin." if flips else " doesn't flip the coin."
            )
        more = encode(words, add_special_tokens=False).ids
        if len(ids) + len(more) + len(asked) > most_tokens:
            break
        ids += more
        state ^= int(flips)
    final = f"{STATES[state]}."
    num_answer = len(encode(f" {final}", add_special_tokens=False).ids)
    return EvalPrompt((*ids, *asked), f" {final}", final, num_answer)


def measure_cost(
    model: EvalModel,
    open_llm: OpenLLM,
    rounds: int = 6,
    streams: Sequence[int] = (1, 16),
    most_tokens: int = 500,
    answer: int = 32,
) -> Iterator[Row]:
    """Time the same texts with thinking, without thinking, and of a plain model folder.

    N-gram speculation is off: how much of the prompt an answer copies differs between the variants. Each
    round runs all variants in turn. The first round is a warm-up.
    """
    with plain_copy(model.folder) as folder:
        own = with_schedule(model.llm, speculation="off")
        plain = with_schedule(open_llm(folder), speculation="off")
        params = SamplingParams(max_tokens=1 + answer, temperature=0.0, deterministic=True, ignore_eos=True)
        silent = replace(params, think=False)
        variants = dict(zip(VARIANTS, ((own, params), (own, silent), (plain, params)), strict=True))
        for texts, density in (("trivial", "none"), ("thought-rich", "dense")):
            for number in streams:
                prompts = coin_texts(model, density, number, most_tokens)
                tokens = sum(len(each.token_ids) for each in prompts)
                timed: dict[str, list[_Timing]] = {name: [] for name in VARIANTS}
                for _ in range(rounds):
                    for name, (llm, chosen) in variants.items():
                        timed[name].append(_time(llm.engine, prompts, chosen))
                for name in VARIANTS:
                    yield {
                        "variant": name,
                        "texts": texts,
                        "streams": number,
                        "thoughts": timed[name][1].thoughts,
                        "prompt_us": 1e6 * median(each.prompt for each in timed[name][1:]) / tokens,
                        "answer_us": 1e6 * median(each.token for each in timed[name][1:]),
                    }


@contextmanager
def plain_copy(folder: Path) -> Iterator[Path]:
    """A folder with the same weights, without T and C."""
    with TemporaryDirectory(prefix="holdfast-plain-") as temporary:
        for path in folder.iterdir():
            if path.is_file() and path.name not in (CONFIG_FILE, WEIGHTS_FILE):
                Path(temporary, path.name).symlink_to(path.resolve())
        yield Path(temporary)


@dataclass(frozen=True)
class _Timing:
    """Seconds until every request has its first token, and seconds of each later token; thoughts of
    a request.
    """

    prompt: float
    token: float
    thoughts: float


def _time(engine: Engine, prompts: Sequence[EvalPrompt], params: SamplingParams) -> _Timing:
    requests = [engine.prepare(each.token_ids, params, want_receipt=False) for each in prompts]
    started = time.perf_counter()
    for request in requests:
        engine.submit(request)
    prefill: float | None = None
    num_tokens: dict[int, int] = {}
    early = num_thoughts = 0
    while engine.has_requests:
        for output in engine.step():
            delta = output.delta
            num_tokens[output.request_id] = num_tokens.get(output.request_id, 0) + len(delta.token_ids)
            num_thoughts += sum(bool(thought.token_ids) for thought in delta.thoughts)
        if prefill is None and len(num_tokens) == len(requests) and all(num_tokens.values()):
            prefill, early = time.perf_counter() - started, sum(num_tokens.values())
    assert prefill is not None, "a request ended without a token"
    answered = time.perf_counter() - started - prefill
    while engine.has_work:
        engine.step()
    num_later = max(1, sum(num_tokens.values()) - early)
    return _Timing(prefill, answered / num_later, num_thoughts / len(requests))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("general", "rounds", "cost"))
    parser.add_argument("folder")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()

    def open_llm(folder: Path) -> LLM:
        return LLM(str(folder), device=options.device, max_model_len=2048, prefix_cache=False)

    found = locate(options.folder)
    model = EvalModel(options.folder, found.adapter or found.path, open_llm, ("parity",), 1, True)
    rows: Iterator[Row]
    if options.what == "general":
        rows = iter((measure_general(model, open_llm),))
    else:
        rows = measure_rounds(model) if options.what == "rounds" else measure_cost(model, open_llm)
    for row in rows:
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
