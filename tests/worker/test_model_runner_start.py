"""Plans that are started before the results of earlier ones are read, and tokens that only the
device knows.
"""

from dataclasses import replace

import pytest
import torch

from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import (
    NO_TOKEN,
    UNKNOWN_TOKEN,
    Pass,
    PassKind,
    PassResult,
    Sampling,
    Span,
    StepPlan,
)
from holdfast.models.decoder import Decoder
from holdfast.worker.kv_store import KVStore
from holdfast.worker.model_runner import ModelRunner, SampledRing

PROMPT = tuple(torch.randint(3, 320, (90,), generator=torch.Generator().manual_seed(8)).tolist())
PAGES = ((5, 9, 2, 7, 0, 11, 3), (1, 4, 6, 8, 10, 12, 13))
SAMPLING = (
    Sampling(SamplingParams(temperature=0, prompt_logprobs=2), 3, 20),
    Sampling(SamplingParams(temperature=0.9, top_k=50, top_p=0.9), 1 << 63, 20),
)


def plan(*spans: Span, kind: PassKind = PassKind.CANONICAL) -> StepPlan:
    num_tokens = sum(span.num_tokens for span in spans)
    return StepPlan((Pass(kind, spans, -(-num_tokens // 16) * 16),))


def prompt(number: int, **asked: object) -> Span:
    count = 40 + number
    return Span(number, 0, PROMPT[:count], PAGES[number], count - 1, SAMPLING[number], **asked)  # type: ignore[arg-type]


def decode(number: int, step: int, token_id: int, **asked: object) -> Span:
    start = 40 + number + step
    return Span(number, start, (token_id,), PAGES[number], 0, SAMPLING[number], **asked)  # type: ignore[arg-type]


@pytest.fixture
def fresh(decoder: Decoder) -> ModelRunner:
    return ModelRunner(decoder, KVStore(24, decoder.config, decoder.backend))


def tokens(results: list[PassResult]) -> list[int]:
    return [samples[-1].token_id for samples in results[-1].samples]


def known_steps(runner: ModelRunner, num_steps: int) -> list[list[PassResult]]:
    """Prompts of two requests and some decode steps, each read before the next is planned."""
    found = [runner.run(plan(prompt(0, logprobs=1), prompt(1, with_checksums=True)))]
    for step in range(num_steps):
        spans = [
            decode(number, step, token_id, logprobs=2) for number, token_id in enumerate(tokens(found[-1]))
        ]
        found.append(runner.run(plan(*spans)))
    return found


def test_results_do_not_depend_on_when_they_are_read(runner: ModelRunner, fresh: ModelRunner) -> None:
    """All plans are started before the first is read, and they are read in another order."""
    known = known_steps(fresh, 3)
    plans = [plan(prompt(0, logprobs=1), prompt(1, with_checksums=True))]
    for step, before in enumerate(known[:-1]):
        plans.append(plan(*(decode(n, step, token, logprobs=2) for n, token in enumerate(tokens(before)))))
    scored = replace(
        prompt(0), token_ids=PROMPT[:30], sample_from=30, scored_ids=PROMPT[1:31], pages=(20, 21)
    )
    plans.append(plan(scored))
    reads = [runner.start(each) for each in plans]
    found = [read() for read in reversed(reads)][::-1]
    assert found[:-1] == known
    assert found[-1] == fresh.run(plan(scored))
    assert [read() for read in reads] == found, "results can be read twice"


@pytest.mark.parametrize("num_steps", [3, 50])
def test_unknown_tokens_are_resolved_across_plans(
    runner: ModelRunner, fresh: ModelRunner, num_steps: int
) -> None:
    """Many steps are in flight, past the end of the ring."""
    known = known_steps(fresh, num_steps)
    reads = [
        runner.start(
            plan(prompt(0, logprobs=1, request_index=4), prompt(1, with_checksums=True, request_index=1))
        )
    ]
    for step in range(num_steps):
        spans = (
            decode(0, step, UNKNOWN_TOKEN, logprobs=2, request_index=4),
            decode(1, step, UNKNOWN_TOKEN, logprobs=2, request_index=1),
        )
        reads.append(runner.start(plan(*spans)))
    assert [read() for read in reads] == known


def test_unknown_tokens_are_resolved_within_a_plan(runner: ModelRunner, fresh: ModelRunner) -> None:
    """Fast passes that propose candidates, and a canonical pass that verifies them."""
    known = known_steps(fresh, 3)
    fast = [plan(prompt(0, request_index=0))]  # canonical KV before the window, on every BLAS
    fast += [plan(decode(0, step, UNKNOWN_TOKEN, request_index=0), kind=PassKind.FAST) for step in range(3)]
    candidates = (PROMPT[39], *(result[-1].samples[0][-1].token_id for result in known[:3]))
    window = Span(
        0, 39, (PROMPT[39],) + (UNKNOWN_TOKEN,) * 3, PAGES[0], 0, SAMPLING[0], logprobs=2, request_index=0
    )
    burst = StepPlan(tuple(one.passes[0] for one in (*fast, plan(window))))
    results = runner.run(burst)
    fresh.run(plan(prompt(0)))
    (expected,) = fresh.run(plan(replace(window, token_ids=candidates)))
    assert results[-1] == expected
    assert [each.token_id for each in results[-1].samples[0]] == [
        each[-1].samples[0][-1].token_id for each in known
    ]


def test_window_longer_than_the_ring_leaves_its_last_tokens(runner: ModelRunner, fresh: ModelRunner) -> None:
    window = Span(0, 0, PROMPT, PAGES[0], 0, SAMPLING[0], request_index=0)
    (first,) = runner.run(plan(window))
    following = Span(0, 90, (UNKNOWN_TOKEN,), PAGES[0], 0, SAMPLING[0], logprobs=1, request_index=0)
    fresh.run(plan(window))
    known = replace(following, token_ids=(first.samples[0][-1].token_id,))
    assert runner.run(plan(following)) == fresh.run(plan(known))


def test_tokens_without_request_index_write_no_ring(runner: ModelRunner, fresh: ModelRunner) -> None:
    runner.run(plan(prompt(0, request_index=0), prompt(1)))
    known = known_steps(fresh, 1)
    runner.run(plan(decode(1, 0, tokens(known[0])[1])))
    (found,) = runner.run(plan(decode(0, 0, UNKNOWN_TOKEN, logprobs=2, request_index=0)))
    assert found.samples[0] == known[1][0].samples[0]


def test_no_token_in_the_ring_is_read_as_token_0(runner: ModelRunner, fresh: ModelRunner) -> None:
    cornered = Sampling(SamplingParams(temperature=0, allowed_token_ids=[3], bad_token_ids=[3]), 0, 20)
    start = replace(prompt(0, request_index=2), sampling=cornered)
    (first,) = runner.run(plan(start))
    assert first.samples[0][0].token_id == NO_TOKEN
    fresh.run(plan(start))
    after = decode(0, 0, UNKNOWN_TOKEN, logprobs=1, request_index=2)
    assert runner.run(plan(after)) == fresh.run(plan(replace(after, token_ids=(0,))))


def test_ring_grows_and_keeps_its_tokens() -> None:
    ring = SampledRing(torch.device("cpu"))
    ring.grow(3)
    ring.write(torch.tensor([2 * 64 + 5]), torch.tensor([77]))
    ring.grow(1)
    ring.grow(400)
    ring.write(torch.tensor([399 * 64]), torch.tensor([NO_TOKEN]))
    token_ids = torch.arange(4)
    ring.read(token_ids, torch.tensor([1, 3]), torch.tensor([2 * 64 + 5, 399 * 64]))
    assert token_ids.tolist() == [0, 77, 2, NO_TOKEN], "the embedding reads it as 0"


def test_capture_does_nothing_on_a_cpu(runner: ModelRunner) -> None:
    runner.capture([1, 2], [16], lambda done, total: pytest.fail("captured"))
    assert len(runner.run(plan(prompt(0)))) == 1


def test_small_passes_use_short_tiles_unless_their_context_is_long(
    fresh: ModelRunner, decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short tiles if they are cheap, and for spot checks; tall ones otherwise."""
    monkeypatch.setattr(decoder.backend, "tile_tokens", lambda span_len, group: 4 if span_len <= 64 else 32)
    pages = tuple(range(2000))

    def is_short(start: int, count: int, kind: PassKind = PassKind.FAST) -> bool:
        span = Span(1, start, (7,) * count, pages, 0, SAMPLING[0])
        batch = fresh._make_batch(Pass(kind, (span,), -(-count // 16) * 16))
        return batch.num_short_tiles == len(batch.tiles) == -(-count // 4)

    assert is_short(0, 512) and is_short(30000, 1) and is_short(1000, 100)
    assert is_short(20000, 30), "a window has short tiles anyway"
    assert not is_short(20000, 100) and is_short(20000, 100, PassKind.CHECK)
    assert not is_short(0, 600), "there is no graph of this size without tall tiles"
