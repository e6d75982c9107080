"""The metrics of one request, from its arrival to its end.

    Metrics.request -> started(queue time) -> received(choice, delta) ... -> finished(...) or failed(code)

Time to first token is per request, whichever choice gave the token. Inter-token latency is per
choice: a delta of n tokens that arrives dt after the choice's previous delta is observed as n
intervals of dt / n. The sum over a choice is then the time from its first delta to its last, and a
verification window of eight tokens weighs as much as eight single tokens. The tokens of a choice's
first delta have no interval, because nothing precedes them.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from holdfast.core.results import Delta, Stats, Thought

# fmt: off
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 320, 640)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 0.75, 1, 2.5, 5, 10, 40)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
# fmt: on

# Field of `Stats`: metric name, help.
_STATS = {
    "candidates": ("candidate_tokens", "Tokens proposed by fast passes or the n-gram proposer."),
    "accepted": ("accepted_tokens", "Candidate tokens that were committed."),
    "rolled_back": ("rolled_back_tokens", "Candidate tokens that were rolled back."),
    "rollbacks": ("rollbacks", "Verdicts that rejected candidates."),
    "windows": ("verification_windows", "Windows of candidates that a canonical pass verified."),
    "canonical_tokens": ("canonical_tokens", "Tokens that a canonical pass sampled itself."),
    "looked_up": ("ngram_candidate_tokens", "Candidate tokens from the n-gram proposer."),
    "guessed": ("thought_predictions", "Thoughts that a pass assumed before they were computed."),
    "guessed_right": ("thought_predictions_accepted", "Predicted thoughts that were confirmed."),
    "preemptions": ("num_preemptions", "Times a request was preempted to free its pages."),
}


class TokenSeries:
    """A `TokenHistogram` at one value of the label."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self.created = time.time()

    def observe(self, value: float, count: int = 1) -> None:
        """Observe a value so many times."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def cumulative(self) -> list[tuple[str, float]]:
        """The number of values up to each bound."""
        total, found = 0, []
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            found.append((floatToGoString(bound), float(total)))  # type: ignore[no-untyped-call]
        return found

    @property
    def sum(self) -> float:
        return self._sum


class TokenHistogram(Collector):
    """A histogram that is observed for every token, with one series for each value of one label.

    prometheus_client's own takes a lock and walks its buckets for each value: an eighth of the CPU time
    of a streamed token. Only the event loop observes this one, so it needs no lock.
    """

    def __init__(
        self, name: str, help: str, label: str, registry: CollectorRegistry, buckets: Sequence[float]
    ) -> None:
        self._name, self._help, self._label = name, help, label
        self._buckets = tuple(buckets)
        self._series: dict[str, TokenSeries] = {}
        registry.register(self)

    def labels(self, value: str) -> TokenSeries:
        return self._series.setdefault(value, TokenSeries(self._buckets))

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._help, labels=(self._label,))
        for value, series in self._series.items():
            family.add_metric((value,), series.cumulative(), series.sum)
            family.add_sample(f"{self._name}_created", {self._label: value}, series.created)
        yield family


class RequestMetricFamilies:
    """The metrics of single requests, labelled by whether the request is deterministic."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"holdfast_{name}", help, ("deterministic",), registry=registry, buckets=buckets)

        def counter(name: str, help: str, *labels: str) -> Counter:
            return Counter(f"holdfast_{name}", help, ("deterministic", *labels), registry=registry)

        self.time_to_first_token = histogram(
            "time_to_first_token_seconds", "From arrival to the first token.", _SECONDS
        )
        self.inter_token_latency = TokenHistogram(
            "holdfast_inter_token_latency_seconds",
            "Between two tokens of a choice.",
            "deterministic",
            registry,
            _TOKEN_SECONDS,
        )
        self.e2e_latency = histogram("e2e_request_latency_seconds", "From arrival to the end.", _SECONDS)
        self.queue_time = histogram(
            "request_queue_time_seconds", "From arrival to the first scheduled pass.", _SECONDS
        )
        self.request_prompt_tokens = histogram(
            "request_prompt_tokens", "Prompt tokens of a request.", _TOKENS
        )
        self.request_generation_tokens = histogram(
            "request_generation_tokens", "Generated tokens of a request.", _TOKENS
        )
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of all requests.")
        self.generation_tokens = counter("generation_tokens", "Generated tokens of all requests.")
        self.success = counter("request_success", "Finished requests, by finish reason.", "finished_reason")
        self.errors = counter("request_errors", "Requests that ended in an error, by code.", "code")
        self.prefix_queries = counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self.prefix_hits = counter("prefix_cache_hits", "Prompt tokens found in the prefix cache.")
        self.thoughts = counter(
            "thoughts", "Chunks a thinking model has thought about: written or trivial (no tokens).", "kind"
        )
        self.stats = {field: counter(name, help) for field, (name, help) in _STATS.items()}


@dataclass(frozen=True)
class RequestSeries:
    """The families at one value of the label.

    Resolved once: resolving a label costs more than counting.
    """

    time_to_first_token: Histogram
    inter_token_latency: TokenSeries
    e2e_latency: Histogram
    queue_time: Histogram
    request_prompt_tokens: Histogram
    request_generation_tokens: Histogram
    prompt_tokens: Counter
    generation_tokens: Counter
    prefix_queries: Counter
    prefix_hits: Counter
    written_thoughts: Counter
    trivial_thoughts: Counter
    stats: dict[str, Counter]
    count_success: Callable[[str], None]
    count_error: Callable[[str], None]

    @staticmethod
    def of(families: RequestMetricFamilies, label: str) -> "RequestSeries":
        """The series of one label. They exist from the start, so that rates begin at 0."""
        for reason in ("stop", "length", "abort"):
            families.success.labels(label, reason)
        return RequestSeries(
            families.time_to_first_token.labels(label),
            families.inter_token_latency.labels(label),
            families.e2e_latency.labels(label),
            families.queue_time.labels(label),
            families.request_prompt_tokens.labels(label),
            families.request_generation_tokens.labels(label),
            families.prompt_tokens.labels(label),
            families.generation_tokens.labels(label),
            families.prefix_queries.labels(label),
            families.prefix_hits.labels(label),
            families.thoughts.labels(label, "written"),
            families.thoughts.labels(label, "trivial"),
            {field: family.labels(label) for field, family in families.stats.items()},
            lambda reason: families.success.labels(label, reason).inc(),
            lambda code: families.errors.labels(label, code).inc(),
        )


class RequestMetrics:
    """Measures one request. It ends once: calls after `finished` or `failed` are not counted."""

    def __init__(self, series: RequestSeries, clock: Callable[[], float]) -> None:
        self._series = series
        self._clock = clock
        self._arrived = clock()
        self._last_delta: dict[int, float] = {}  # time, by choice
        self._num_counted = 0
        self._ended = False
        self.first_token_seconds: float | None = None  # from arrival

    @property
    def seconds(self) -> float:
        """Time since the request arrived."""
        return self._clock() - self._arrived

    def started(self, queue_seconds: float) -> None:
        """The request left the queue after this time."""
        self._series.queue_time.observe(queue_seconds)

    def received(self, index: int, delta: Delta) -> None:
        """A delta of choice `index` arrived."""
        if delta.thoughts:
            self.thoughts(delta.thoughts)
        if delta.token_ids:
            self.tokens(index, len(delta.token_ids))

    def tokens(self, index: int, count: int) -> None:
        """A delta of `count` tokens of choice `index` arrived."""
        if count < 1 or self._ended:
            return
        now = self._clock()
        last = self._last_delta.get(index)
        self._last_delta[index] = now
        self._num_counted += count
        self._series.generation_tokens.inc(count)
        if last is not None:
            self._series.inter_token_latency.observe((now - last) / count, count)
        elif self.first_token_seconds is None:
            self.first_token_seconds = now - self._arrived
            self._series.time_to_first_token.observe(self.first_token_seconds)

    def thoughts(self, thoughts: Sequence[Thought]) -> None:
        """Thoughts of a choice were committed."""
        num_written = sum(bool(one.token_ids) for one in thoughts)
        self._series.written_thoughts.inc(num_written)
        self._series.trivial_thoughts.inc(len(thoughts) - num_written)

    def finished(
        self, reason: str, prompt_tokens: int, completion_tokens: int, stats: Stats, num_choices: int = 1
    ) -> None:
        """The request is complete, with num_choices choices for each prompt, or was aborted by its
        client.
        """
        if self._ended:
            return
        self._ended = True
        series = self._series
        series.count_success(reason)
        series.e2e_latency.observe(self.seconds)
        series.request_prompt_tokens.observe(prompt_tokens)
        series.request_generation_tokens.observe(completion_tokens)
        series.prompt_tokens.inc(prompt_tokens)
        series.generation_tokens.inc(max(0, completion_tokens - self._num_counted))
        for field, counter in series.stats.items():
            counter.inc(getattr(stats, field))
        # Each choice looks its prompt up once, and again after each preemption; then the hit may be
        # longer than the prompt.
        num_queried = prompt_tokens * (num_choices + stats.preemptions)
        series.prefix_queries.inc(max(num_queried, stats.cached_tokens))
        series.prefix_hits.inc(stats.cached_tokens)

    def failed(self, code: str) -> None:
        """The request ended in an error, possibly after some tokens."""
        if not self._ended:
            self._ended = True
            self._series.count_error(code)
