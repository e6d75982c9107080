"""Everything a request can ask of the sampler at once: a window is its rows one by one, and neighbours change nothing."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import NO_TOKEN, Sampled, Span
from holdfast.numerics.ops import Backend
from holdfast.numerics.select_backend import open_backend
from holdfast.numerics.settings import apply_numeric_settings
from holdfast.worker import sampler
from holdfast.worker.logits_processors.pipeline import apply_logits_processors
from holdfast.worker.logits_slices import LogitsSlice, Masks, batch_slices
from holdfast.worker.logprobs import gather_logprobs
from holdfast.worker.transfer import HostCopies
from worker.sampler_spans import VOCAB, mask, parts, span

ROWS = 7
CPU = torch.device("cpu")


def sample(backend: Backend, logits: Tensor, some: Sequence[LogitsSlice]) -> list[Sampled]:
    return sampler.sample(backend, logits, some, HostCopies(CPU)).read()


@pytest.fixture(params=["c", "torch"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return open_backend(torch.float32, kernels=request.param, num_threads=apply_numeric_settings().threads)


@dataclass(frozen=True)
class Asked:
    """A request with random wishes, and the logits of a window of it."""

    tokens: list[int]
    params: SamplingParams
    prompt_len: int
    forbidden: tuple[int, ...]
    bad_words: tuple[tuple[int, ...], ...]
    masks: Masks
    logits: Tensor
    logprobs: int | None

    def rows(self, first: int, stop: int) -> Span:
        """Rows first .. stop - 1 of the window."""
        return span(
            self.tokens[: len(self.tokens) - ROWS + stop],
            stop - first,
            self.params,
            prompt_len=self.prompt_len,
            forbidden=self.forbidden,
            bad_words=self.bad_words,
            logprobs=self.logprobs,
            with_checksums=True,
        )


def random_request(seed: int) -> Asked:
    rng = random.Random(seed)

    def some(count: int) -> list[int]:
        return [rng.randrange(12) for _ in range(count)]  # few of the vocabulary, so that rules meet

    tokens = some(rng.randint(ROWS, 40))
    wishes = {
        "repetition_penalty": rng.choice([0.5, 1.3, 3.0]),
        "frequency_penalty": rng.uniform(-2, 2),
        "presence_penalty": rng.uniform(-2, 2),
        "logit_bias": [(token_id, rng.uniform(-9, 9)) for token_id in some(5)],
        "allowed_token_ids": [*range(4, 20), *some(3)],
        "bad_token_ids": some(3),
        "top_k": 9,
        "top_p": 0.8,
        "min_p": 0.05,
        "min_tokens": rng.randint(1, 16),
    }
    chosen = {name: value for name, value in wishes.items() if rng.random() < 0.5}
    masks: Masks = ()
    if rng.random() < 0.5:
        masks = tuple(rng.choice([None, b"", mask(*some(3)), mask(*range(1, 190))]) for _ in range(ROWS))
    generator = torch.Generator().manual_seed(seed)
    return Asked(
        tokens=tokens,
        params=SamplingParams(temperature=rng.choice([0.0, 0.8]), **chosen),
        prompt_len=rng.randint(1, len(tokens)),
        forbidden=(4, 5) if "min_tokens" in chosen else (),
        bad_words=tuple(tuple(some(rng.randint(1, 3))) for _ in range(4)) if rng.random() < 0.5 else (),
        masks=masks,
        logits=torch.randn(ROWS, VOCAB, generator=generator) * 3,
        logprobs=rng.choice([None, 0, 4]),
    )


def bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int32)


@pytest.mark.parametrize("seed", range(60))
def test_a_window_is_its_rows_one_by_one(backend: Backend, seed: int) -> None:
    asked = random_request(seed)
    changed = asked.logits.clone()
    apply_logits_processors(changed, parts(asked.rows(0, ROWS), masks=[asked.masks]))
    window = sample(backend, asked.logits.clone(), parts(asked.rows(0, ROWS), masks=[asked.masks]))
    for row in range(ROWS):
        alone = parts(asked.rows(row, row + 1), masks=[asked.masks[row : row + 1]])
        logits = asked.logits[row : row + 1].clone()
        apply_logits_processors(logits, alone)
        assert torch.equal(bits(logits[0]), bits(changed[row]))
        assert sample(backend, asked.logits[row : row + 1].clone(), alone) == window[row : row + 1]


@pytest.mark.parametrize("seed", range(20))
def test_neighbours_and_cuts_change_nothing(backend: Backend, seed: int) -> None:
    """Ten requests in one batch, cut into slices of any length, against each alone."""
    asked = [random_request(1000 + 10 * seed + index) for index in range(10)]
    spans, masks = [each.rows(0, ROWS) for each in asked], [each.masks for each in asked]
    logits = torch.cat([each.logits for each in asked])
    found: list[Sampled] = []
    for some in batch_slices(spans, masks, max_tokens=1 + seed):
        rows = slice(len(found), len(found) + sum(part.num_tokens for part in some))
        found += sample(backend, logits[rows].clone(), some)
    for index, each in enumerate(asked):
        alone = sample(backend, each.logits.clone(), parts(spans[index], masks=[each.masks]))
        assert found[index * ROWS : (index + 1) * ROWS] == alone


@pytest.mark.parametrize("seed", range(20))
def test_reported_logprobs_are_of_the_raw_logits(backend: Backend, seed: int) -> None:
    asked = random_request(2000 + seed)
    window = sample(backend, asked.logits.clone(), parts(asked.rows(0, ROWS), masks=[asked.masks]))
    for row, each in enumerate(window):
        if asked.logprobs is None or each.token_id == NO_TOKEN:
            assert each.logprob is None
        else:
            raw, chosen = asked.logits[row : row + 1], torch.tensor([each.token_id])
            found = gather_logprobs(backend, raw, chosen, [asked.logprobs], HostCopies(CPU))
            assert [each.logprob] == found.read([each.token_id])


def test_the_requests_above_meet_every_rule() -> None:
    """Else they prove little."""
    asked = [random_request(seed) for seed in range(60)]
    given = [each for each in asked if any(found is not None for found in each.masks)]
    assert 10 < len(given) < 50
    assert sum(each.params.penalises for each in asked) > 20
    assert sum(bool(each.bad_words) and bool(each.masks) for each in asked) > 5
    outcomes = [left for each in asked for left in _num_left(each)]
    assert {0, 1, VOCAB} < set(outcomes)


def _num_left(asked: Asked) -> list[int]:
    logits = asked.logits.clone()
    apply_logits_processors(logits, parts(asked.rows(0, ROWS), masks=[asked.masks]))
    left: list[int] = (logits > -torch.inf).sum(1).tolist()
    return left
