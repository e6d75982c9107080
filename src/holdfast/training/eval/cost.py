"""What T and C cost where they are, and where they are not: the same texts with thinking, without, and in a plain folder.

Nothing is looked up in the request's own text: how much of it an answer copies differs from variant to variant.
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
from holdfast.training.eval.eval_set import Question
from holdfast.training.eval.model import Open, Subject, with_schedule
from holdfast.training.eval.report import Cost
from holdfast.training.eval.rounds import coin_texts

TEXTS = {"trivial": "none", "thought-rich": "dense"}
VARIANTS = ("thinks", "does not think", "plain folder")
_STREAMS = (1, 16)
_ROUNDS = 6  # the first of them warms up
_ANSWER = 32
_MOST_TOKENS = 500


def measure_cost(
    subject: Subject,
    open_llm: Open,
    rounds: int = _ROUNDS,
    streams: Sequence[int] = _STREAMS,
    most_tokens: int = _MOST_TOKENS,
) -> list[Cost]:
    with plain_copy(subject.folder) as folder:
        plain = with_schedule(open_llm(folder), speculation="off")
        return [
            cost
            for texts, density in TEXTS.items()
            for number in streams
            for cost in _measure(
                subject,
                plain,
                texts,
                coin_texts(subject, density, number, most_tokens),
                rounds,
            )
        ]


@contextmanager
def plain_copy(folder: Path) -> Iterator[Path]:
    """The same weights in a folder that does not think."""
    with TemporaryDirectory(prefix="holdfast-plain-") as temporary:
        for path in folder.iterdir():
            if path.is_file() and path.name not in (CONFIG_FILE, WEIGHTS_FILE):
                Path(temporary, path.name).symlink_to(path.resolve())
        yield Path(temporary)


def _measure(
    subject: Subject, plain: LLM, texts: str, questions: Sequence[Question], rounds: int
) -> Iterator[Cost]:
    """Each round asks all variants in turn."""
    own = with_schedule(subject.llm, speculation="off")
    asked = {
        "thinks": (own, subject.params(1 + _ANSWER, ignore_eos=True)),
        "does not think": (own, subject.params(1 + _ANSWER, ignore_eos=True, think=False)),
        "plain folder": (plain, subject.params(1 + _ANSWER, ignore_eos=True)),
    }
    taken: dict[str, list[_Taken]] = {name: [] for name in VARIANTS}
    for _ in range(rounds):
        for name, (llm, params) in asked.items():
            taken[name].append(_time(llm.engine, questions, params))
    prompt_tokens = fmean(len(each.token_ids) for each in questions)
    for name in VARIANTS:
        kept = taken[name][1:]
        yield Cost(
            model=subject.name,
            variant=name,
            texts=texts,
            streams=len(questions),
            prompt_tokens=prompt_tokens,
            thoughts=kept[0].thoughts,
            prompt_us=1e6 * median(each.prompt for each in kept) / (prompt_tokens * len(questions)),
            answer_us=1e6 * median(each.token for each in kept),
        )


@dataclass(frozen=True)
class _Taken:
    """Seconds: until every request has its first token, and of each token behind that. thoughts: a request."""

    prompt: float
    token: float
    thoughts: float


def _time(engine: Engine, questions: Sequence[Question], params: SamplingParams) -> _Taken:
    requests = [engine.prepare(each.token_ids, params, want_receipt=False) for each in questions]
    started = time.perf_counter()
    for request in requests:
        engine.submit(request)
    read: float | None = None
    num_tokens: dict[int, int] = {}
    early = num_thoughts = 0
    while engine.has_requests:
        for update in engine.step():
            told = update.delta
            num_tokens[update.request_id] = num_tokens.get(update.request_id, 0) + len(told.token_ids)
            num_thoughts += sum(bool(thought.token_ids) for thought in told.thoughts)
        if read is None and len(num_tokens) == len(requests) and all(num_tokens.values()):
            read, early = time.perf_counter() - started, sum(num_tokens.values())
    assert read is not None, "a request ended without a token"
    answered = time.perf_counter() - started - read
    while engine.has_work:
        engine.step()
    behind = max(1, sum(num_tokens.values()) - early)
    return _Taken(read, answered / behind, num_thoughts / len(requests))
