"""What T and C cost where they are, and where they are not: the same texts with thinking, without, and in a plain folder."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory

from holdfast.core.result import Result
from holdfast.engine.llm import LLM
from holdfast.thinking.config import CONFIG_FILE, WEIGHTS_FILE
from holdfast.train.exam.paper import Question
from holdfast.train.exam.report import Cost
from holdfast.train.exam.rounds import coin_texts
from holdfast.train.exam.subject import Open, Subject

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
        plain = open_llm(folder)
        plain.engine.wants_receipt = lambda request_id: False
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
    """Each round asks all variants in turn: for one token, then for many; the difference is the answer's."""
    short: dict[str, list[float]] = {name: [] for name in VARIANTS}
    more: dict[str, list[float]] = {name: [] for name in VARIANTS}
    thoughts: dict[str, float] = {}
    for _ in range(rounds):
        for name in VARIANTS:
            one, _ = _time(subject, plain, name, questions, 1)
            many, results = _time(subject, plain, name, questions, 1 + _ANSWER)
            short[name].append(one)
            more[name].append(many - one)
            thoughts[name] = fmean(sum(bool(each.token_ids) for each in one.thoughts) for one in results)
    prompt_tokens = fmean(len(each.token_ids) for each in questions)
    for name in VARIANTS:
        yield Cost(
            model=subject.name,
            variant=name,
            texts=texts,
            streams=len(questions),
            prompt_tokens=prompt_tokens,
            thoughts=thoughts[name],
            prompt_us=1e6 * median(short[name][1:]) / (prompt_tokens * len(questions)),
            answer_us=1e6 * median(more[name][1:]) / (_ANSWER * len(questions)),
        )


def _time(
    subject: Subject, plain: LLM, variant: str, questions: Sequence[Question], max_tokens: int
) -> tuple[float, list[Result]]:
    params = subject.params(max_tokens, ignore_eos=True, think=variant != "does not think")
    started = time.perf_counter()
    results = subject.ask_each(
        questions, [params] * len(questions), plain if variant == "plain folder" else None
    )
    return time.perf_counter() - started, results
