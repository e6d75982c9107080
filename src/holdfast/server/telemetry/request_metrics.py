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
from functools import partial
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from holdfast.core.results import Delta, Stats

# fmt: off
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 320, 640)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 0.75, 1, 2.5, 5, 10, 40)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
# fmt: on

# Metric name: help, buckets.
_HISTOGRAMS = {
    "time_to_first_token_seconds": ("From arrival to the first token.", _SECONDS),
    "e2e_request_latency_seconds": ("From arrival to the end.", _SECONDS),
    "request_queue_time_seconds": ("From arrival to the first scheduled pass.", _SECONDS),
    "request_prompt_tokens": ("Prompt tokens of a request.", _TOKENS),
    "request_generation_tokens": ("Generated tokens of a request.", _TOKENS),
}
_COUNTERS = {
    "prompt_tokens": "Prompt tokens of all requests.",
    "generation_tokens": "Generated tokens of all requests.",
    "prefix_cache_queries": "Prompt tokens looked up in the prefix cache.",
    "prefix_cache_hits": "Prompt tokens found in the prefix cache.",
}
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
        self.sum = 0.0
        self.created = time.time()

    def observe(self, value: float, count: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += count
        self.sum += value * count

    def add(self, counts: Sequence[int], total: float) -> None:
        """Add observations that were counted elsewhere, by bucket. total: the sum of their values."""
        self._counts = [sum(pair) for pair in zip(self._counts, counts, strict=True)]
        self.sum += total

    def cumulative(self) -> list[tuple[str, float]]:
        names = map(floatToGoString, (*self._bounds, float("inf")))
        return list(zip(names, map(float, accumulate(self._counts)), strict=True))


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
        def counter(name: str, help: str, *labels: str) -> Counter:
            return Counter(f"holdfast_{name}", help, ("deterministic", *labels), registry=registry)

        self.histograms = {
            name: Histogram(f"holdfast_{name}", help, ("deterministic",), registry=registry, buckets=buckets)
            for name, (help, buckets) in _HISTOGRAMS.items()
        }
        self.counters = {name: counter(name, help) for name, help in _COUNTERS.items()}
        self.stats = {field: counter(name, help) for field, (name, help) in _STATS.items()}
        self.inter_token_latency = TokenHistogram(
            "holdfast_inter_token_latency_seconds",
            "Between two tokens of a choice.",
            "deterministic",
            registry,
            _TOKEN_SECONDS,
        )
        self.success = counter("request_success", "Finished requests, by finish reason.", "finished_reason")
        self.errors = counter("request_errors", "Requests that ended in an error, by code.", "code")
        self.thoughts = counter(
            "thoughts", "Chunks a thinking model has thought about: written or trivial (no tokens).", "kind"
        )


class RequestSeries:
    """The families at one value of the label. Resolved once: resolving a label costs more than counting."""

    def __init__(self, families: RequestMetricFamilies, label: str) -> None:
        self.histograms = {name: family.labels(label) for name, family in families.histograms.items()}
        self.counters = {name: family.labels(label) for name, family in families.counters.items()}
        self.stats = {field: family.labels(label) for field, family in families.stats.items()}
        self.generation_tokens = self.counters["generation_tokens"]
        self.inter_token_latency = families.inter_token_latency.labels(label)
        self.written_thoughts = families.thoughts.labels(label, "written")
        self.trivial_thoughts = families.thoughts.labels(label, "trivial")
        self.success = partial(families.success.labels, label)
        self.errors = partial(families.errors.labels, label)
        for reason in ("stop", "length", "abort"):  # they exist from the start, so that rates begin at 0
            self.success(reason)


class RequestMetrics:
    """Measures one request, from now on. Times are in seconds since then."""

    def __init__(self, series: RequestSeries, clock: Callable[[], float]) -> None:
        self.queue_seconds: float | None = None
        self.first_token_seconds: float | None = None
        self.num_generated = 0
        self._series = series
        self._clock = clock
        self._arrived = clock()
        self._last_delta: dict[int, float] = {}  # time, by choice

    @property
    def seconds(self) -> float:
        return self._clock() - self._arrived

    def started(self, queue_seconds: float) -> None:
        """Note that the request left the queue after this time. Only the first of its prompts counts."""
        if self.queue_seconds is None:
            self.queue_seconds = queue_seconds
            self._series.histograms["request_queue_time_seconds"].observe(queue_seconds)

    def received(self, index: int, delta: Delta) -> None:
        """Count a delta of choice `index`."""
        if delta.thoughts:
            num_written = sum(bool(one.token_ids) for one in delta.thoughts)
            self._series.written_thoughts.inc(num_written)
            self._series.trivial_thoughts.inc(len(delta.thoughts) - num_written)
        if not delta.token_ids:
            return
        count, now = len(delta.token_ids), self._clock()
        last = self._last_delta.get(index)
        self._last_delta[index] = now
        self.num_generated += count
        self._series.generation_tokens.inc(count)
        if last is not None:
            self._series.inter_token_latency.observe((now - last) / count, count)
        elif self.first_token_seconds is None:
            self.first_token_seconds = now - self._arrived
            self._series.histograms["time_to_first_token_seconds"].observe(self.first_token_seconds)

    def finished(self, reason: str, num_prompt_tokens: int, stats: Stats, num_choices: int = 1) -> None:
        """Count a request that is complete, with num_choices choices for each prompt, or that its client aborted."""
        series = self._series
        series.success(reason).inc()
        series.histograms["e2e_request_latency_seconds"].observe(self.seconds)
        series.histograms["request_prompt_tokens"].observe(num_prompt_tokens)
        series.histograms["request_generation_tokens"].observe(self.num_generated)
        series.counters["prompt_tokens"].inc(num_prompt_tokens)
        for field, counter in series.stats.items():
            counter.inc(getattr(stats, field))
        # Each choice looks its prompt up once, and again after each preemption; then the hit may be
        # longer than the prompt.
        num_queried = num_prompt_tokens * (num_choices + stats.preemptions)
        series.counters["prefix_cache_queries"].inc(max(num_queried, stats.cached_tokens))
        series.counters["prefix_cache_hits"].inc(stats.cached_tokens)

    def failed(self, code: str) -> None:
        """Count a request that ended in an error, possibly after some tokens."""
        self._series.errors(code).inc()
