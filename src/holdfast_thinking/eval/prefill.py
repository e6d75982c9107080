"""Prefill with predicted thoughts against chunk by chunk, on texts of one length with few or many
thoughts.
"""

from collections.abc import Sequence
from statistics import fmean, median

import numpy as np

from holdfast.core.results import Result
from holdfast_thinking.eval.accuracy import is_right
from holdfast_thinking.eval.eval_set import EvalPrompt
from holdfast_thinking.eval.model import EvalModel, with_schedule
from holdfast_thinking.eval.report import PrefillRounds
from holdfast_thinking.tasks.filler import NAMES, SENTENCES
from holdfast_thinking.tasks.parity import STATES

DENSITIES = {
    "none": None,
    "rare": 40,
    "few": 12,
    "medium": 3,
    "dense": 0,
}  # filler sentences before an event
_MOST_TOKENS = 600
_COUNT = 12
_WARM_UPS = 2


def measure_rounds(
    model: EvalModel, count: int = _COUNT, most_tokens: int = _MOST_TOKENS
) -> list[PrefillRounds]:
    by_chunk = with_schedule(model.llm, max_guesses=0)
    found = []
    for density in ("rare", "few", "medium", "dense"):
        prompts = coin_texts(model, density, count + _WARM_UPS, most_tokens)
        guessed, plain = [], []
        for prompt in prompts:
            params = model.params(prompt.max_tokens)
            guessed.append(model.time(prompt, params))
            plain.append(model.time(prompt, params, by_chunk))
        found.append(_compare(model, density, prompts[_WARM_UPS:], guessed[_WARM_UPS:], plain[_WARM_UPS:]))
    return found


def _compare(
    model: EvalModel,
    density: str,
    prompts: Sequence[EvalPrompt],
    guessed: Sequence[tuple[float, Result]],
    plain: Sequence[tuple[float, Result]],
) -> PrefillRounds:
    assert model.thinking is not None
    results, others = [result for _, result in guessed], [result for _, result in plain]
    return PrefillRounds(
        model=model.name,
        density=density,
        count=len(prompts),
        prompt_tokens=fmean(len(each.token_ids) for each in prompts),
        chunks=fmean(len(each.token_ids) // model.thinking.chunk for each in prompts),
        thoughts=fmean(sum(bool(thought.token_ids) for thought in each.thoughts) for each in results),
        rounds=fmean(each.stats.prefill_passes for each in results),
        guessed=fmean(each.stats.guessed for each in results),
        guessed_right=fmean(each.stats.guessed_right for each in results),
        ms=1000 * median(seconds for seconds, _ in guessed),
        rounds_by_chunk=fmean(each.stats.prefill_passes for each in others),
        ms_by_chunk=1000 * median(seconds for seconds, _ in plain),
        same_answers=all(
            (one.token_ids, one.thoughts) == (other.token_ids, other.thoughts)
            for one, other in zip(results, others, strict=True)
        ),
        right=sum(is_right(model, *each) for each in zip(prompts, results, strict=True)),
    )


def coin_texts(model: EvalModel, density: str, count: int, most_tokens: int) -> list[EvalPrompt]:
    """A coin and as many events as fit; with density "none" only filler sentences."""
    rng = np.random.default_rng(11)
    return [_coin_text(model, DENSITIES[density], rng, most_tokens) for _ in range(count)]


def _coin_text(model: EvalModel, gap: int | None, rng: np.random.Generator, most_tokens: int) -> EvalPrompt:
    encode = model.eval_set.tokenizer.encode
    state = int(rng.integers(2))
    asked = list(encode(" What's the state? A:", add_special_tokens=False).ids)
    ids = list(encode(f"A coin's state is {STATES[state]}.", add_special_tokens=False).ids)
    while True:
        words = "".join(f" {rng.choice(SENTENCES)}" for _ in range(1 if gap is None else gap))
        flips = gap is not None and rng.random() < 0.7
        if gap is not None:
            words += f" {rng.choice(NAMES)}" + (" flips the coin." if flips else " doesn't flip the coin.")
        more = encode(words, add_special_tokens=False).ids
        if len(ids) + len(more) + len(asked) > most_tokens:
            break
        ids += more
        state ^= int(flips)
    final = f"{STATES[state]}."
    num_answer = len(encode(f" {final}", add_special_tokens=False).ids)
    return EvalPrompt((*ids, *asked), f" {final}", final, num_answer)
