"""What the documentation measures of thinking models beside `holdfast eval`, a row of JSON each.

    python benchmarks/thinking/eval.py general DIR    # 200 general prompts: thoughts, and the backbone's bits
    python benchmarks/thinking/eval.py rounds DIR     # prefill with predicted thoughts against chunk by chunk
    python benchmarks/thinking/eval.py swapped DIR    # parity: the last thought forced, as it is and inverted
    python benchmarks/thinking/eval.py latency DIR DIR2 --task TASK    # single requests, the models in turns

DIR is a folder of `holdfast train thinking`, or `coin`, `smollm2-coin`. --device cuda for a GPU.
"""

import argparse
import copy
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

import numpy as np

from holdfast.core.results import Result, Thought
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.llm.llm import LLM
from holdfast.errors import ConfigError
from holdfast.models.adapter import is_adapter
from holdfast.models.locate import locate
from holdfast_thinking.data.words import read_words
from holdfast_thinking.eval.model import EvalModel, EvalPrompt, OpenLLM
from holdfast_thinking.grammar.words import FEW_NAMES, SENTENCES
from holdfast_thinking.tasks.parity import STATES

Row = dict[str, Any]
Pairs = list[tuple[EvalPrompt, Result]]
NUM_TIMED, WARM_UPS = 25, 3  # texts, for latency
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
    last = [(prompt, result, _last_thought(prompt, result)) for prompt, result in pairs]
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


def _last_thought(prompt: EvalPrompt, result: Result) -> Thought | None:
    inside = len(prompt.token_ids)
    said = [thought for thought in result.thoughts if thought.token_ids and thought.position < inside]
    return said[-1] if said else None


def measure_swapped(model: EvalModel, events: int = 40, count: int = 100) -> Row:
    prompts = model.draw("parity", events, count)
    return swap_last_thought(model, events, list(zip(prompts, model.generate(prompts), strict=True)))


def measure_latency(models: Sequence[EvalModel], count: int, events: int, task: str) -> list[Row]:
    """Time all models on the same texts, one request at a time, in turns. Ratios are to the first model's times.

    Two times: from the request to the end of the answer, and from the last token of the prompt, for a reader that
    had read the prompt as it came.
    """
    prompts = [each.draw(task, events, count + WARM_UPS) for each in models]
    if len(prompts[0]) <= WARM_UPS:
        raise ConfigError(f"{task} has {len(prompts[0])} texts; latency needs more than {WARM_UPS}")
    timed = [
        [_time(model, drawn[number]) for model, drawn in zip(models, prompts, strict=True)]
        for number in range(len(prompts[0]))
    ]
    rows = [
        _latency(model, drawn[WARM_UPS:], took[WARM_UPS:], task, events)
        for model, drawn, took in zip(models, prompts, map(list, zip(*timed, strict=True)), strict=True)
    ]
    for row in rows:
        row["ratio"] = row["median_ms"] / rows[0]["median_ms"]
        row["answer_ratio"] = row["answer_ms"] / rows[0]["answer_ms"]
    return rows


@dataclass(frozen=True)
class _Timed:
    """Seconds to the first tokens, how many they were, and seconds to the end of the answer."""

    first: float
    num_first: int
    total: float
    result: Result

    @property
    def answer(self) -> float:
        """Seconds from the last token of the prompt on: all answer tokens at the pace of the later ones.

        Without later ones it is the time to the first tokens, which has the prompt in it.
        """
        later = len(self.result.token_ids) - self.num_first
        return (self.total - self.first) * (later + self.num_first) / later if later > 0 else self.first


def _time(model: EvalModel, prompt: EvalPrompt) -> _Timed:
    first, num_first = None, 0
    started = time.perf_counter()
    stream = model.llm.stream(prompt.token_ids, model.params(prompt), want_receipt=False)
    for delta in stream:
        if first is None and delta.token_ids:
            first, num_first = time.perf_counter() - started, len(delta.token_ids)
    total = time.perf_counter() - started
    assert stream.result is not None
    return _Timed(total if first is None else first, num_first, total, stream.result)


def _latency(
    model: EvalModel, prompts: Sequence[EvalPrompt], timed: Sequence[_Timed], task: str, events: int
) -> Row:
    times, results = [each.total for each in timed], [each.result for each in timed]
    tenths = quantiles(times, n=10, method="inclusive") if len(times) > 1 else [times[0]] * 9
    return {
        "model": model.name,
        "form": model.info.form,
        "count": len(times),
        "median_ms": 1000 * median(times),
        "p10_ms": 1000 * tenths[0],
        "p90_ms": 1000 * tenths[-1],
        "prompt_tokens": fmean(len(each.token_ids) for each in prompts),
        "answer_tokens": fmean(len(each.token_ids) for each in results),
        "looked_up": fmean(each.stats.looked_up for each in results),  # of them, from n-grams
        "rounds": fmean(each.stats.prefill_passes for each in results),
        "accuracy": fmean(model.is_right(*each) for each in zip(prompts, results, strict=True)),
        "first_ms": 1000 * median(each.first for each in timed),
        "answer_ms": 1000 * median(each.answer for each in timed),
        "task": task,
        "events": events,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("general", "rounds", "swapped", "latency"))
    parser.add_argument("folders", nargs="+", help="several for latency")
    parser.add_argument("--task", default="parity")
    parser.add_argument("--events", type=int, default=40, help="of a text, for tasks that have events")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()

    def open_llm(folder: Path) -> LLM:
        return LLM(str(folder), device=options.device, max_model_len=2048, prefix_cache=False)

    def open_model(name: str) -> EvalModel:
        found = locate(name)
        return EvalModel(name, found.adapter or found.path, open_llm, (options.task,), 1, True)

    models = [open_model(each) for each in options.folders]
    model = models[0]
    events = options.events if model.source.has_events(options.task) else 0
    measures: dict[str, Callable[[], Iterable[Row]]] = {
        "general": lambda: [measure_general(model, open_llm)],
        "rounds": lambda: measure_rounds(model),
        "swapped": lambda: [measure_swapped(model)],
        "latency": lambda: measure_latency(models, NUM_TIMED, events, options.task),
    }
    for row in measures[options.what]():
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
