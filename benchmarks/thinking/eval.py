"""What the documentation measures of thinking models beside `holdfast eval`, a row of JSON each.

    python benchmarks/thinking/eval.py general DIR    # 200 general prompts: thoughts, and the backbone's bits
    python benchmarks/thinking/eval.py rounds DIR     # prefill with predicted thoughts against chunk by chunk
    python benchmarks/thinking/eval.py swapped DIR    # parity: the last thought forced, as it is and inverted

DIR is a folder of `holdfast train thinking`, or `coin`, `smollm2-coin`. --device cuda for a GPU.
"""

import argparse
import copy
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from holdfast.core.results import Result, Thought
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.llm.llm import LLM
from holdfast.models.adapter import is_adapter
from holdfast.models.locate import locate
from holdfast_thinking.data.words import read_words
from holdfast_thinking.eval.model import EvalModel, EvalPrompt, OpenLLM
from holdfast_thinking.grammar.words import FEW_NAMES, SENTENCES
from holdfast_thinking.tasks.parity import STATES

Row = dict[str, Any]
Pairs = list[tuple[EvalPrompt, Result]]
DENSITIES = {"rare": 40, "few": 12, "medium": 3, "dense": 0}  # filler sentences before an event


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
    extension = model.llm.engine.scheduler.config.new_extension
    assert extension is not None
    by_chunk = _restarted(model.llm, new_extension=extension.guessing(0))
    for density, gap in DENSITIES.items():
        rng = np.random.default_rng(11)
        prompts = [_coin_text(model, gap, rng, most_tokens) for _ in range(count + warm_ups)]
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


def _restarted(llm: LLM, **changes: Any) -> LLM:
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


def _coin_text(model: EvalModel, gap: int, rng: np.random.Generator, most_tokens: int) -> EvalPrompt:
    """Return a coin and as many events as fit, with `gap` filler sentences before each event."""
    encode = model.tokenizer.encode
    state = int(rng.integers(2))
    asked = list(encode(" What's the state? A:", add_special_tokens=False).ids)
    ids = list(encode(f"A coin's state is {STATES[state]}.", add_special_tokens=False).ids)
    while True:
        words = "".join(f" {rng.choice(SENTENCES)}" for _ in range(gap))
        flips = rng.random() < 0.7
        event = "flips the coin." if flips else "doesn't flip the coin."
        words += f" {rng.choice(FEW_NAMES)} {event}"
        more = encode(words, add_special_tokens=False).ids
        if len(ids) + len(more) + len(asked) > most_tokens:
            break
        ids += more
        state ^= int(flips)
    final = f"{STATES[state]}."
    num_answer = len(encode(f" {final}", add_special_tokens=False).ids)
    return EvalPrompt((*ids, *asked), f" {final}", final, num_answer)


def swap_last_thought(model: EvalModel, events: int, pairs: Pairs) -> Row:
    """Force the last thought about each prompt of parity: unchanged, and with the other side.

    pairs: the answers with the model's own thoughts. flipped: answers that became the opposite. unchanged:
    those that stayed with the same thought.
    """
    last = [(prompt, result, _last_thought(model, prompt, result)) for prompt, result in pairs]
    forced = [(prompt, result, thought) for prompt, result, thought in last if thought is not None]
    same, other = (_force(model, forced, is_swapped) for is_swapped in (False, True))
    before = [result for _, result, _ in forced]
    return {
        "model": model.name,
        "events": events,
        "count": len(forced),
        "flipped": sum(a.text == opposite(b.text) != b.text for a, b in zip(other, before, strict=True)),
        "unchanged": sum(a.token_ids == b.token_ids for a, b in zip(same, before, strict=True)),
        "without_thought": len(pairs) - len(forced),
    }


def _force(
    model: EvalModel, forced: list[tuple[EvalPrompt, Result, Thought]], is_swapped: bool
) -> list[Result]:
    params = []
    for prompt, _, thought in forced:
        ids = _swapped(model, thought) if is_swapped else thought.token_ids
        params.append(model.params(prompt, forced_thoughts={thought.chunk: list(ids)}))
    return model.generate([prompt for prompt, _, _ in forced], params) if forced else []


def _swapped(model: EvalModel, thought: Thought) -> list[int]:
    assert model.thinking is not None
    text = model.tokenizer.decode(list(thought.token_ids), skip_special_tokens=False)
    ids: list[int] = model.tokenizer.encode(opposite(text), add_special_tokens=False).ids
    return ids[: model.thinking.max_thought]


def opposite(text: str) -> str:
    one, other = STATES
    return other.join(part.replace(other, one) for part in text.split(one))


def _last_thought(model: EvalModel, prompt: EvalPrompt, result: Result) -> Thought | None:
    inside = len(prompt.token_ids) // model.chunk
    said = [thought for thought in result.thoughts if thought.token_ids and thought.chunk < inside]
    return said[-1] if said else None


def measure_swapped(model: EvalModel, events: int = 40, count: int = 100) -> Row:
    prompts = model.draw("parity", events, count)
    return swap_last_thought(model, events, list(zip(prompts, model.generate(prompts), strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("general", "rounds", "swapped"))
    parser.add_argument("folder")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()

    def open_llm(folder: Path) -> LLM:
        return LLM(str(folder), device=options.device, max_model_len=2048, prefix_cache=False)

    found = locate(options.folder)
    model = EvalModel(options.folder, found.adapter or found.path, open_llm, ("parity",), 1, True)
    measures: dict[str, Callable[[], Iterable[Row]]] = {
        "general": lambda: [measure_general(model, open_llm)],
        "rounds": lambda: measure_rounds(model),
        "swapped": lambda: [measure_swapped(model)],
    }
    for row in measures[options.what]():
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
