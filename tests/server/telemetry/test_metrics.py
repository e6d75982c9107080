"""Prometheus metrics: names, values, and counters that never decrease."""

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.parser import text_string_to_metric_families

from holdfast.core.results import Delta, Stats, Thought
from holdfast.engine.status import STEP_SIZES, EngineCounters, EngineStatus
from holdfast.server.telemetry.metrics import Metrics, ServerMetrics
from holdfast.server.telemetry.request_metrics import TokenHistogram
from holdfast.server.tenants.tenant import address_tenant, key_tenant

DOCS = Path(__file__).parents[3] / "docs" / "operations.md"
IDLE = EngineStatus(
    num_running=0, num_waiting=0, num_pages_used=0, num_pages_idle=0, num_pages=100, counters=EngineCounters()
)


class Clock:
    """A clock that the test advances."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def metrics(clock):
    return Metrics(clock)


@pytest.fixture
def server(metrics):
    return ServerMetrics({"m": metrics})


def render(metrics, *arguments):
    """The text of a server's metrics, or of those of a single model."""
    server = metrics if isinstance(metrics, ServerMetrics) else ServerMetrics({"m": metrics})
    return server.render(*arguments)


def read(metrics, name, **labels):
    """One sample of the rendered text, or None."""
    found = [
        sample.value
        for family in text_string_to_metric_families(render(metrics)[0].decode())
        for sample in family.samples
        if sample.name == f"holdfast_{name}" and sample.labels == labels
    ]
    assert len(found) < 2, f"{name} is there twice"
    return found[0] if found else None


def of_request(metrics, name, deterministic="false", **labels):
    return read(metrics, name, deterministic=deterministic, **labels)


def test_every_metric_is_documented_and_begins_at_0(metrics):
    """So that rates begin at 0, too. Series of codes and of tenants begin with their first value."""
    families = list(text_string_to_metric_families(render(metrics)[0].decode()))
    samples = {sample.name for family in families for sample in family.samples}
    names = {f"{one.name}{'_total' * (one.type == 'counter')}" for one in families}
    documented = set(re.findall(r"holdfast_\w+", DOCS.read_text()))
    assert documented - samples - names == set() and names <= documented
    without = {one.name for one in families if not one.samples}
    assert {name for name in without if "_tenant_" not in name} == {"holdfast_request_errors"}
    for label in ("true", "false"):
        assert of_request(metrics, "request_success_total", label, finished_reason="stop") == 0
        assert of_request(metrics, "inter_token_latency_seconds_count", label) == 0


def test_every_engine_counter_is_exported():
    """A new engine counter must have a metric."""
    changes = [{one.name: 7} for one in fields(EngineStatus) if one.name != "counters"]
    numbers = [one.name for one in fields(EngineCounters) if one.type is int]
    changes += [{"counters": EngineCounters(**{name: 7})} for name in numbers]
    metrics = Metrics()
    before = render(metrics)[0]
    for change in changes:
        metrics.update(replace(IDLE, **change))
        after = render(metrics)[0]
        assert after != before, change
        before = after


def test_engine_steps_are_counted_by_their_tokens(metrics):
    """As vLLM's iteration_tokens_total, over engine processes."""
    for num_tokens, sizes in ((9, (1, 1)), (73, (1, 1, 0, 0, 0, 1))):
        padded = [*sizes, *[0] * (len(STEP_SIZES) + 1 - len(sizes))]
        counted = replace(IDLE, counters=EngineCounters(num_tokens=num_tokens, steps_by_size=padded))
        metrics.update(counted)
    metrics.engine_restarted()
    metrics.update(counted)
    name = "iteration_tokens_total"
    assert read(metrics, f"{name}_sum") == 2 * 73
    assert [read(metrics, f"{name}_bucket", le=le) for le in ("1.0", "8.0", "64.0", "128.0")] == [2, 4, 4, 6]
    assert b"holdfast_iteration_tokens_total_count 6" in render(metrics, "application/openmetrics-text")[0]


# One request


def tokens(count):
    return Delta(token_ids=(1,) * count)


def test_request_latencies_and_counts(metrics, clock):
    measured = metrics.request(True)
    clock.now += 0.5
    measured.started(0.4)
    measured.received(0, tokens(1))
    clock.now += 0.25
    measured.received(0, tokens(2))
    clock.now += 0.25
    measured.finished("stop", 10, Stats())

    assert measured.first_token_seconds == 0.5
    for name, count, total in (
        ("time_to_first_token_seconds", 1, 0.5),
        ("inter_token_latency_seconds", 2, 0.25),
        ("e2e_request_latency_seconds", 1, 1.0),
        ("request_queue_time_seconds", 1, 0.4),
        ("request_prompt_tokens", 1, 10),
        ("request_generation_tokens", 1, 3),
    ):
        assert of_request(metrics, f"{name}_count", "true") == count, name
        assert of_request(metrics, f"{name}_sum", "true") == total, name
        assert of_request(metrics, f"{name}_count", "false") == 0, name
    assert of_request(metrics, "prompt_tokens_total", "true") == 10
    assert of_request(metrics, "generation_tokens_total", "true") == 3
    assert of_request(metrics, "request_success_total", "true", finished_reason="stop") == 1


def test_delta_of_several_tokens_is_several_intervals(metrics, clock):
    measured = metrics.request(False)
    measured.received(0, tokens(1))
    clock.now += 0.008
    measured.received(0, tokens(8))
    assert of_request(metrics, "inter_token_latency_seconds_count") == 8
    assert of_request(metrics, "inter_token_latency_seconds_sum") == pytest.approx(0.008)
    assert of_request(metrics, "inter_token_latency_seconds_bucket", le="0.0025") == 8


def test_inter_token_latency_is_per_choice(metrics, clock):
    measured = metrics.request(False)
    for index in (0, 1):
        clock.now += 1
        measured.received(index, tokens(3))  # the first delta of each choice has no interval
    assert of_request(metrics, "time_to_first_token_seconds_count") == 1
    assert of_request(metrics, "inter_token_latency_seconds_count") == 0
    clock.now += 1
    measured.received(0, tokens(1))
    assert of_request(metrics, "inter_token_latency_seconds_sum") == 2


def test_failed_request_is_counted_by_its_code(metrics):
    failing = metrics.request(False)
    failing.received(0, tokens(2))
    failing.failed("timeout")
    assert of_request(metrics, "request_errors_total", code="timeout") == 1
    assert of_request(metrics, "generation_tokens_total") == 2


def test_error_before_the_body_is_read_is_counted(server):
    server.refused("invalid_api_key")
    assert of_request(server, "request_errors_total", "unknown", code="invalid_api_key") == 1


def test_stats_are_summed(metrics):
    stats = Stats(candidates=10, accepted=7, rolled_back=3, rollbacks=1, windows=2, preemptions=1)
    for _ in range(2):
        metrics.request(True).finished("stop", 5, stats)
    for name, value in (
        ("candidate_tokens", 20),
        ("accepted_tokens", 14),
        ("rolled_back_tokens", 6),
        ("rollbacks", 2),
        ("verification_windows", 4),
        ("num_preemptions", 2),
    ):
        assert of_request(metrics, f"{name}_total", "true") == value, name


def test_prefix_hits_are_never_more_than_queries(metrics):
    metrics.request(False).finished("stop", 32, Stats(cached_tokens=16))
    assert of_request(metrics, "prefix_cache_queries_total") == 32
    assert of_request(metrics, "prefix_cache_hits_total") == 16
    # Each choice looks its prompt up.
    metrics.request(False).finished("stop", 32, Stats(cached_tokens=32), num_choices=2)
    assert of_request(metrics, "prefix_cache_queries_total") == 96
    metrics.request(False).finished("stop", 32, Stats(cached_tokens=500, preemptions=1))
    assert of_request(metrics, "prefix_cache_hits_total") == 548
    assert of_request(metrics, "prefix_cache_queries_total") == 596


# The engine


def test_engine_gauges(metrics):
    metrics.update(replace(IDLE, num_running=3, num_waiting=2, num_pages_used=25, num_pages_idle=50))
    for name, value in (
        ("num_requests_running", 3),
        ("num_requests_waiting", 2),
        ("kv_cache_usage_perc", 0.25),
        ("kv_pages_used", 25),
        ("kv_pages_cached", 50),
        ("kv_pages", 100),
    ):
        assert read(metrics, name) == value, name


def test_counters_continue_after_an_engine_restart(metrics):
    metrics.update(replace(IDLE, counters=EngineCounters(num_steps=8), num_running=4, num_pages_used=9))
    metrics.engine_restarted()
    assert read(metrics, "num_requests_running") == 0
    assert read(metrics, "kv_pages_used") == 0
    assert read(metrics, "kv_pages") == 100
    metrics.update(replace(IDLE, counters=EngineCounters(num_steps=10)))  # more than the old process
    assert read(metrics, "engine_steps_total") == 18
    assert read(metrics, "engine_restarts_total") == 1


def test_smaller_engine_counter_means_a_restart(metrics):
    for steps in (8, 2, 5):
        metrics.update(replace(IDLE, counters=EngineCounters(num_steps=steps)))
    assert read(metrics, "engine_steps_total") == 13


# Exposition


def test_plain_text_has_no_created_samples(metrics):
    text, kind = render(metrics, "text/plain;version=0.0.4, */*")
    assert kind.startswith("text/plain; version=0.0.4")
    assert b"_created" not in text
    assert b"# TYPE holdfast_generation_tokens_total counter" in text


@pytest.mark.parametrize("version", ["1.0.0", "0.0.1", "abc", "999.1"])
def test_openmetrics_by_accept_header(metrics, version):
    text, kind = render(
        metrics, f"text/html, application/openmetrics-text;version={version};q=0.9, */*;q=0.1"
    )
    assert kind == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert text.endswith(b"# EOF\n")
    assert b"# TYPE holdfast_generation_tokens counter" in text


def test_thoughts_are_counted_by_kind(metrics):
    request = metrics.request(True)
    request.received(0, Delta(thoughts=(Thought(0, 3, "", ()), Thought(1, 7, "tails", (9,)))))
    request.received(0, Delta(thoughts=(Thought(2, 11, "", ()),)))
    request.finished("stop", 8, Stats(guessed=3, guessed_right=2))
    assert of_request(metrics, "thoughts_total", "true", kind="written") == 1
    assert of_request(metrics, "thoughts_total", "true", kind="trivial") == 2
    assert of_request(metrics, "thought_predictions_total", "true") == 3
    assert of_request(metrics, "thought_predictions_accepted_total", "true") == 2


ALICE, BOB, ADMIN = key_tenant("alice"), key_tenant("bob"), key_tenant("root", is_admin=True)


def test_tenants_are_labelled_by_the_names_of_their_keys(server):
    for address in ("192.0.2.1", "192.0.2.2"):
        server.tenants.ended(
            address_tenant(address), refusal="invalid_api_key", num_prompt_tokens=0, num_generated_tokens=0
        )
    server.tenants.ended(ALICE, refusal=None, num_prompt_tokens=7, num_generated_tokens=3)
    server.tenants.set_places([(ALICE, 2, 1), (ALICE, 0, 4), (BOB, 1, 0)])
    assert read(server, "tenant_requests_total", tenant="alice") == 1
    assert read(server, "tenant_prompt_tokens_total", tenant="alice") == 7
    assert read(server, "tenant_generation_tokens_total", tenant="alice") == 3
    assert read(server, "tenant_requests_refused_total", tenant="anonymous", code="invalid_api_key") == 2
    assert read(server, "tenant_num_requests_running", tenant="alice") == 2
    assert read(server, "tenant_num_requests_waiting", tenant="alice") == 5
    server.tenants.set_places([])
    assert read(server, "tenant_num_requests_running", tenant="bob") == 0
    assert "192.0.2" not in render(server)[0].decode()


@pytest.mark.parametrize("accept", ["", "application/openserver-text"], ids=["plain", "openserver"])
def test_tenant_sees_its_own_series_only(server, accept):
    for tenant in (ALICE, BOB):
        server.tenants.ended(tenant, refusal="x", num_prompt_tokens=1, num_generated_tokens=1)
    server.tenants.set_places([(ALICE, 1, 1), (BOB, 1, 1)])
    shown = render(server, accept, ALICE)[0].decode()
    assert 'tenant="alice"' in shown and "bob" not in shown
    everything = render(server, accept, ADMIN)[0].decode()
    assert 'tenant="alice"' in everything and 'tenant="bob"' in everything


# The histogram of tokens

BUCKETS = (0.001, 0.01, 0.25, 1.0)
VALUES = (0.0, 0.001, 0.0011, 0.01, 0.2, 0.25, 0.9, 1.0, 5.0)


def samples(families):
    (family,) = families
    assert family.type == "histogram" and family.documentation == "Help."
    return {
        (one.name, str(sorted(one.labels.items()))): one.value
        for one in family.samples
        if not one.name.endswith("_created")
    }


def test_token_histogram_has_the_samples_of_the_library():
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    fast = TokenHistogram("x", "Help.", "kind", ours, BUCKETS)
    plain = Histogram("x", "Help.", ("kind",), registry=theirs, buckets=BUCKETS)
    for kind, values in (("a", VALUES), ("b", VALUES[:3]), ("c", ())):
        for value in values:
            fast.labels(kind).observe(value, 2)
            plain.labels(kind).observe(value)
            plain.labels(kind).observe(value)
        plain.labels(kind)
        fast.labels(kind)
    assert samples(list(ours.collect())) == samples(list(theirs.collect()))


def test_model_may_be_named_unknown():
    server = ServerMetrics({"a": Metrics(), "unknown": Metrics()})
    server.refused("early")
    assert of_request(server, "generation_tokens_total", model="unknown") == 0
    assert of_request(server, "request_errors_total", "unknown", model="unknown", code="early") == 1
