"""One request's figures, from its arrival to its end.

    Metrics.request -> started(queue time) -> thoughts(...), tokens(choice, count) ... -> finished(...) or failed(code)

The time to the first token is the request's: whichever choice gave it. The latency between tokens is a choice's: a piece of
several tokens that comes dt behind the choice's last piece is that many intervals of dt / count. So the sum over an answer is
the time from its first piece to its last, and a window of eight tokens weighs as much as eight single ones. The tokens of a
choice's first piece have no interval, because nothing came before them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram

from holdfast.core.results import Stats, Thought

# fmt: off
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 320, 640)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 0.75, 1, 2.5, 5, 10, 40)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
# fmt: on

# What `Stats` counts, and what it is called here.
_STATS = {
    "candidates": ("candidates", "Tokens proposed by fast passes or look-ups."),
    "accepted": ("accepted", "Candidates that were committed."),
    "rolled_back": ("rolled_back", "Candidates that were dropped."),
    "rollbacks": ("rollbacks", "Verdicts that dropped candidates."),
    "windows": ("windows", "Windows that were verified."),
    "canonical_tokens": ("canonical_tokens", "Tokens a canonical pass gave itself."),
    "looked_up": ("looked_up", "Candidates found in the request's own text."),
    "guessed": ("thoughts_guessed", "Thoughts that were taken for granted in some pass."),
    "guessed_right": ("thoughts_guessed_right", "Those of them that stood."),
    "preemptions": ("num_preemptions", "Times a request gave its pages to an older one."),
}


class RequestFamilies:
    """The metrics that are about single requests, each labelled by whether the request was deterministic."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"holdfast_{name}", help, ("deterministic",), registry=registry, buckets=buckets)

        def counter(name: str, help: str, *labels: str) -> Counter:
            return Counter(f"holdfast_{name}", help, ("deterministic", *labels), registry=registry)

        self.first = histogram("time_to_first_token_seconds", "From arrival to the first token.", _SECONDS)
        self.between = histogram(
            "inter_token_latency_seconds", "Between two tokens of an answer.", _TOKEN_SECONDS
        )
        self.whole = histogram("e2e_request_latency_seconds", "From arrival to the end.", _SECONDS)
        self.queue = histogram("request_queue_time_seconds", "Waiting for a place in a pass.", _SECONDS)
        self.prompt = histogram("request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
        self.generation = histogram("request_generation_tokens", "Tokens of a request's answers.", _TOKENS)
        self.prompt_total = counter("prompt_tokens", "Tokens of all prompts.")
        self.generation_total = counter("generation_tokens", "Tokens of all answers.")
        self.success = counter("request_success", "Requests that ended, by why.", "finished_reason")
        self.errors = counter("request_errors", "Requests that got an error, by its code.", "code")
        self.prefix_queries = counter("prefix_cache_queries", "Prompt tokens looked for in the prefix cache.")
        self.prefix_hits = counter("prefix_cache_hits", "Prompt tokens found in the prefix cache.")
        self.thoughts = counter("thoughts", "Chunks that were thought about, by what came of it.", "kind")
        self.stats = {field: counter(name, help) for field, (name, help) in _STATS.items()}


@dataclass(frozen=True)
class RequestSeries:
    """The families at one value of the label, looked up once because that costs more than counting does."""

    first: Histogram
    between: Histogram
    whole: Histogram
    queue: Histogram
    prompt: Histogram
    generation: Histogram
    prompt_total: Counter
    generation_total: Counter
    prefix_queries: Counter
    prefix_hits: Counter
    thoughts: Counter
    trivial_thoughts: Counter
    stats: dict[str, Counter]
    end: Callable[[str], None]
    fail: Callable[[str], None]

    @staticmethod
    def of(families: RequestFamilies, label: str) -> "RequestSeries":
        """The series of one label; they exist from the start, so that rates begin at 0."""
        for reason in ("stop", "length", "abort"):
            families.success.labels(label, reason)
        return RequestSeries(
            families.first.labels(label),
            families.between.labels(label),
            families.whole.labels(label),
            families.queue.labels(label),
            families.prompt.labels(label),
            families.generation.labels(label),
            families.prompt_total.labels(label),
            families.generation_total.labels(label),
            families.prefix_queries.labels(label),
            families.prefix_hits.labels(label),
            families.thoughts.labels(label, "written"),
            families.thoughts.labels(label, "trivial"),
            {field: family.labels(label) for field, family in families.stats.items()},
            lambda reason: families.success.labels(label, reason).inc(),
            lambda code: families.errors.labels(label, code).inc(),
        )


class RequestMetrics:
    """Measures one request. It ends once: what is said of it afterwards is not counted."""

    def __init__(self, series: RequestSeries, clock: Callable[[], float]) -> None:
        self._series = series
        self._clock = clock
        self._arrived = clock()
        self._last_piece: dict[int, float] = {}  # by choice
        self._num_counted = 0
        self._ended = False
        self.first_token_seconds: float | None = None  # from arrival

    @property
    def seconds(self) -> float:
        """How long ago the request arrived."""
        return self._clock() - self._arrived

    def started(self, queue_seconds: float) -> None:
        """It left the queue after so long."""
        self._series.queue.observe(queue_seconds)

    def tokens(self, index: int, count: int) -> None:
        """A piece of a choice: count tokens more."""
        if count < 1 or self._ended:
            return
        now = self._clock()
        last = self._last_piece.get(index)
        self._last_piece[index] = now
        self._num_counted += count
        self._series.generation_total.inc(count)
        if last is not None:
            interval = (now - last) / count
            for _ in range(count):
                self._series.between.observe(interval)
        elif self.first_token_seconds is None:
            self.first_token_seconds = now - self._arrived
            self._series.first.observe(self.first_token_seconds)

    def thoughts(self, thoughts: Sequence[Thought]) -> None:
        """What a choice thought further."""
        num_written = sum(bool(one.token_ids) for one in thoughts)
        self._series.thoughts.inc(num_written)
        self._series.trivial_thoughts.inc(len(thoughts) - num_written)

    def finished(
        self, reason: str, prompt_tokens: int, completion_tokens: int, stats: Stats, num_choices: int = 1
    ) -> None:
        """It has its answers, num_choices to each prompt, or as much of them as its client waited for."""
        if self._ended:
            return
        self._ended = True
        series = self._series
        series.end(reason)
        series.whole.observe(self.seconds)
        series.prompt.observe(prompt_tokens)
        series.generation.observe(completion_tokens)
        series.prompt_total.inc(prompt_tokens)
        series.generation_total.inc(max(0, completion_tokens - self._num_counted))
        for field, counter in series.stats.items():
            counter.inc(getattr(stats, field))
        # A prompt is looked for once a choice, and again after each preemption; what is found then may be longer than it.
        looked_for = prompt_tokens * (num_choices + stats.preemptions)
        series.prefix_queries.inc(max(looked_for, stats.cached_tokens))
        series.prefix_hits.inc(stats.cached_tokens)

    def failed(self, code: str) -> None:
        """It got an error instead, or behind the tokens it already had."""
        if not self._ended:
            self._ended = True
            self._series.fail(code)
