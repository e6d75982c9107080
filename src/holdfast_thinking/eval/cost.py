"""The cost of T and C: the same texts with thinking, without thinking, and of a plain model folder.

N-gram speculation is off: how much of the prompt an answer copies differs between the variants.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory

from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.engine import Engine
from holdfast.engine.llm import LLM
from holdfast.thinking.config import CONFIG_FILE, WEIGHTS_FILE
from holdfast_thinking.eval.eval_set import EvalPrompt
from holdfast_thinking.eval.model import EvalModel, OpenLLM, with_schedule
from holdfast_thinking.eval.prefill import coin_texts
from holdfast_thinking.eval.report import TokenCost

TEXTS = {"trivial": "none", "thought-rich": "dense"}
VARIANTS = ("thinks", "does not think", "plain folder")
_STREAMS = (1, 16)
_ROUNDS = 6  # the first is a warm-up
_ANSWER = 32
_MOST_TOKENS = 500


def measure_cost(
    model: EvalModel,
    open_llm: OpenLLM,
    rounds: int = _ROUNDS,
    streams: Sequence[int] = _STREAMS,
    most_tokens: int = _MOST_TOKENS,
) -> list[TokenCost]:
    with plain_copy(model.folder) as folder:
        plain = with_schedule(open_llm(folder), speculation="off")
        return [
            cost
            for texts, density in TEXTS.items()
            for number in streams
            for cost in _measure(
                model,
                plain,
                texts,
                coin_texts(model, density, number, most_tokens),
                rounds,
            )
        ]


@contextmanager
def plain_copy(folder: Path) -> Iterator[Path]:
    """A folder with the same weights, without T and C."""
    with TemporaryDirectory(prefix="holdfast-plain-") as temporary:
        for path in folder.iterdir():
            if path.is_file() and path.name not in (CONFIG_FILE, WEIGHTS_FILE):
                Path(temporary, path.name).symlink_to(path.resolve())
        yield Path(temporary)


def _measure(
    model: EvalModel, plain: LLM, texts: str, prompts: Sequence[EvalPrompt], rounds: int
) -> Iterator[TokenCost]:
    """Each round runs all variants in turn."""
    own = with_schedule(model.llm, speculation="off")
    variants = {
        "thinks": (own, model.params(1 + _ANSWER, ignore_eos=True)),
        "does not think": (own, model.params(1 + _ANSWER, ignore_eos=True, think=False)),
        "plain folder": (plain, model.params(1 + _ANSWER, ignore_eos=True)),
    }
    timings: dict[str, list[_Timing]] = {name: [] for name in VARIANTS}
    for _ in range(rounds):
        for name, (llm, params) in variants.items():
            timings[name].append(_time(llm.engine, prompts, params))
    prompt_tokens = fmean(len(each.token_ids) for each in prompts)
    for name in VARIANTS:
        measured = timings[name][1:]
        yield TokenCost(
            model=model.name,
            variant=name,
            texts=texts,
            streams=len(prompts),
            prompt_tokens=prompt_tokens,
            thoughts=measured[0].thoughts,
            prompt_us=1e6 * median(each.prompt for each in measured) / (prompt_tokens * len(prompts)),
            answer_us=1e6 * median(each.token for each in measured),
        )


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
