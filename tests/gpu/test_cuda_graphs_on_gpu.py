"""CUDA graphs on a GPU: they give the bits of eager passes and the same KV, and starting does not wait for the device.

Without a GPU, under Triton's interpreter, a graph is a function that runs again. That finds inputs that are missing in the
buffer.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from gpu_numbers import HAS_GPU, same_bits
from torch import Tensor

from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import UNKNOWN_TOKEN, Pass, PassKind, PassResult, Sampling, Span, StepPlan
from holdfast.core.structured_output import Constraint
from holdfast.models.config import parse_config
from holdfast.models.decoder import Decoder
from holdfast.models.dummy import DummyCheckpoint
from holdfast.models.weight_loader import load_decoder
from holdfast.numerics.ops import Backend
from holdfast.numerics.settings_guard import our_settings
from holdfast.worker.cuda_graphs import CudaRecorder
from holdfast.worker.head import HeadTokens, LastLayer
from holdfast.worker.input_batch import make_input_batch
from holdfast.worker.kv_store import KVStore
from holdfast.worker.model_runner import ModelRunner
from holdfast.worker.transfer import HostCopies
from support.fake_recorder import FakeRecorder
from worker.sampler_spans import FixedGrammar, mask

PAGE, VOCAB, NUM_PAGES = 64, 320, 64
NUM_SEQS = 12 if HAS_GPU else 2  # the interpreter takes a second for a few tokens
SIZES = (1, 2, 3, 4, 8, 16) if HAS_GPU else (2, 3)
PADDED = min(size for size in SIZES if size >= NUM_SEQS)
CANONICAL = (256,) if HAS_GPU else ()
LONG = 1024 if HAS_GPU else 8  # tokens of a pass that ends before its last layer
PROMPT = tuple(torch.randint(3, VOCAB, (70,), generator=torch.Generator().manual_seed(8)).tolist())
PARAMS = (
    SamplingParams(temperature=0),
    SamplingParams(temperature=0.8),
    SamplingParams(temperature=1.0, top_k=20, top_p=0.9),
)


@pytest.fixture
def decoder(backend: Backend, dtype: torch.dtype, device: torch.device) -> Decoder:
    heads = (16, 4, 64) if HAS_GPU else (4, 2, 16)
    config = parse_config(
        {
            "model_type": "llama",
            "vocab_size": VOCAB,
            "hidden_size": heads[0] * heads[2],
            "intermediate_size": 2 * heads[0] * heads[2],
            "num_hidden_layers": 3 if HAS_GPU else 1,
            "num_attention_heads": heads[0],
            "num_key_value_heads": heads[1],
            "head_dim": heads[2],
            "max_position_embeddings": 512,
        }
    )
    return load_decoder(DummyCheckpoint(config, device=device), backend, dtype, max_len=512)


def open_runner(decoder: Decoder) -> ModelRunner:
    """All pages hold random keys and values, the same in every runner."""
    store = KVStore(NUM_PAGES, decoder.config, decoder.backend)
    generator = torch.Generator().manual_seed(4)
    for layer in store.layers:
        for tensor in (layer.keys, layer.values):
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return ModelRunner(decoder, store)


@pytest.fixture
def eager(decoder: Decoder) -> ModelRunner:
    return open_runner(decoder)


@pytest.fixture
def graphed(decoder: Decoder) -> ModelRunner:
    runner = open_runner(decoder)
    capture(runner)
    return runner


def capture(runner: ModelRunner) -> None:
    if HAS_GPU:
        runner.capture(SIZES, CANONICAL, max_len=512)
    else:
        with torch.inference_mode():
            runner._graphs.capture(SIZES, CANONICAL, 8, FakeRecorder())
            runner._head_graphs.capture(runner._graphs.output, SIZES, CANONICAL, FakeRecorder())


@contextmanager
def counting_replays(runner: ModelRunner) -> Iterator[list[int]]:
    sizes: list[int] = []
    replay = runner._graphs.replay

    def recording(size: int, *, canonical: bool) -> Tensor:
        sizes.append(size)
        return replay(size, canonical=canonical)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner._graphs, "replay", recording)
        yield sizes


def sampling_of(number: int) -> Sampling:
    return Sampling(PARAMS[number % len(PARAMS)], number, 20)


def pages(number: int) -> tuple[int, ...]:
    return (3 * number + 2, 3 * number, 3 * number + 1)


def prompt_len(number: int) -> int:
    return 58 + number  # some end before a page boundary, some after it


def prompts() -> StepPlan:
    """The last token of each prompt."""
    spans = [
        Span(n, prompt_len(n) - 1, (PROMPT[n],), pages(n), 0, sampling_of(n), logprobs=0, request_index=n)
        for n in range(NUM_SEQS)
    ]
    return StepPlan((Pass(PassKind.FAST, tuple(spans), PADDED),))


def decode(step: int, tokens: Sequence[int], padded: int, kind: PassKind = PassKind.FAST) -> StepPlan:
    spans = [
        Span(
            n,
            prompt_len(n) + step,
            (token,),
            pages(n),
            0,
            sampling_of(n),
            n % 2,
            with_checksums=n == 1,
            request_index=n,
        )
        for n, token in enumerate(tokens)
    ]
    return StepPlan((Pass(kind, tuple(spans), padded, certified=kind is PassKind.CANONICAL),))


def tokens_of(results: list[PassResult]) -> list[int]:
    return [samples[-1].token_id for result in results for samples in result.samples]


def assert_same_kv(one: ModelRunner, other: ModelRunner) -> None:
    for mine, theirs in zip(one._store.layers, other._store.layers, strict=True):
        assert same_bits(mine.keys, theirs.keys)
        assert same_bits(mine.values, theirs.values)


@pytest.mark.parametrize("kind", [PassKind.FAST, PassKind.CANONICAL])
def test_graphed_decode_steps_equal_eager_ones(
    eager: ModelRunner, graphed: ModelRunner, kind: PassKind
) -> None:
    """A few requests, padded and not, across a page boundary."""
    found = graphed.run(prompts())
    assert found == eager.run(prompts())
    tokens = tokens_of(found)
    for step in range(8 if HAS_GPU else 2):
        count = 1 + step % NUM_SEQS if HAS_GPU else 2
        padded = min(size for size in SIZES if size >= count + step % 2)
        plan = decode(step, tokens[:count], padded, kind)
        with counting_replays(graphed) as replays:
            found = graphed.run(plan)
        assert replays == [padded]
        assert found == eager.run(plan)
        tokens[:count] = tokens_of(found)
    assert_same_kv(eager, graphed)


@pytest.mark.parametrize("kind", [PassKind.FAST, PassKind.CANONICAL])
@pytest.mark.parametrize("is_sampled", [False, True], ids=["greedy", "sampled"])
def test_plain_steps_take_a_head_graph(
    eager: ModelRunner,
    graphed: ModelRunner,
    monkeypatch: pytest.MonkeyPatch,
    kind: PassKind,
    is_sampled: bool,
) -> None:
    """With logprobs, without and mixed. Token ids pass from step to step on the device."""
    params = (*PARAMS, SamplingParams(temperature=0.9, top_p=0.6)) if is_sampled else PARAMS[:1]
    samplings = [Sampling(one, seed, 20) for seed, one in enumerate(params)]
    replayed: list[int] = []
    sample = graphed._head_graphs.sample

    def recording(size: int, *given: Any, **settings: Any) -> HeadTokens:
        replayed.append(size)
        return sample(size, *given, **settings)

    monkeypatch.setattr(graphed._head_graphs, "sample", recording)
    tokens = tokens_of(eager.run(prompts()))
    assert tokens_of(graphed.run(prompts())) == tokens and replayed == [PADDED]
    replayed.clear()
    plans, reads = [], []
    for step, logprobs in enumerate(((0,), (None,), (0, None))):
        some = decode(step, tokens if step == 0 else [UNKNOWN_TOKEN] * NUM_SEQS, PADDED, kind).passes[0]
        spans = tuple(
            replace(
                span,
                sampling=samplings[n % len(samplings)],
                with_checksums=False,
                logprobs=logprobs[n % len(logprobs)],
            )
            for n, span in enumerate(some.spans)
        )
        plans.append(StepPlan((replace(some, spans=spans),)))
        read = graphed.start(plans[-1])
        # On a CPU nothing is copied: results that are not read now are overwritten.
        reads.append(read if HAS_GPU else partial(list, read()))
    assert [read() for read in reads] == [eager.run(plan) for plan in plans]
    assert replayed == [PADDED] * 3
    assert_same_kv(eager, graphed)


def test_head_graphs_are_captured_whatever_the_last_pass_left(
    graphed: ModelRunner, device: torch.device
) -> None:
    """Each size has another layout of the settings. These seeds of the large pass, read as fp32 for a small
    one, are temperatures and a min-p of 2, which keeps no token."""
    head, sizes = graphed._head_graphs, (64, 16, 64, 8, 64, 4, 64, 1) if HAS_GPU else (16, 1)
    spans = [
        Span(number, 9, (7,), (0,), 0, Sampling(PARAMS[1], 0x4000000040000000 + number, 4), logprobs=0)
        for number in range(sizes[0])
    ]
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(sizes[0], graphed._decoder.config.hidden_size, generator=generator)
    with our_settings(device), torch.inference_mode(), graphed._stream.entered():
        recorder = FakeRecorder() if graphed._stream.cuda is None else CudaRecorder(graphed._stream.cuda)
        head.capture(hidden.to(device, graphed._decoder.dtype), sizes, (), recorder, lazily=True)
        for size in sizes:
            some, copies = spans[:size], HostCopies(device)
            batch = make_input_batch(Pass(PassKind.FAST, tuple(some), size), PAGE)
            assert head.fits(size, batch, some, canonical=False)
            found = head.sample(size, size, some, copies, canonical=False)
            copies.finish()
            copies.wait()
            assert all(0 <= each.token_id < VOCAB and each.logprob is not None for each in found.read())


def test_released_runner_runs_without_graphs(eager: ModelRunner, graphed: ModelRunner) -> None:
    assert graphed.run(prompts()) == eager.run(prompts())
    graphed.release()
    plan = decode(0, [4] * NUM_SEQS, PADDED)
    with counting_replays(graphed) as replays:
        assert graphed.run(plan) == eager.run(plan)
    assert replays == []


def test_graphed_windows_among_decode_tokens_equal_eager_ones(
    eager: ModelRunner, graphed: ModelRunner
) -> None:
    for runner in (eager, graphed):
        runner.run(prompts())
    window = Span(0, 63, (7, 8, 9), pages(0), 0, sampling_of(0), logprobs=2)
    chunk = Span(1, 59, (5, 6), pages(1), 2, sampling_of(1), scored_ids=(6, 9))
    single = Span(2, 60, (4,), pages(2), 0, sampling_of(2))
    spans = (window, chunk, single) if HAS_GPU else (replace(window, token_ids=(7, 8)), single)
    size = 8 if HAS_GPU else 3
    plan = StepPlan((Pass(PassKind.FAST, spans, size),))
    with counting_replays(graphed) as replays:
        found = graphed.run(plan)
    assert replays == [size]
    assert found == eager.run(plan)
    assert_same_kv(eager, graphed)


@pytest.mark.skipif(not CANONICAL, reason="a reference pass is too large for the interpreter")
def test_graphed_canonical_windows_equal_eager_ones(eager: ModelRunner, graphed: ModelRunner) -> None:
    for runner in (eager, graphed):
        runner.run(prompts())
    spans = [
        Span(n, prompt_len(n), (7, 8, 9), pages(n), 0, sampling_of(n), logprobs=1) for n in range(NUM_SEQS)
    ]
    plan = StepPlan((Pass(PassKind.CANONICAL, tuple(spans), 256),))
    with counting_replays(graphed) as replays:
        found = graphed.run(plan)
    assert replays == [256]
    assert found == eager.run(plan)
    assert_same_kv(eager, graphed)


def long_pass(kind: PassKind) -> StepPlan:
    """Prompt chunks, two of which end here, and decode tokens between them."""
    lengths = (300, 350, 290) if HAS_GPU else (5,)
    spans, first = [], 3 * NUM_SEQS
    for number, length in enumerate(lengths, NUM_SEQS):
        tokens, table = (PROMPT * 6)[number : number + length], tuple(range(first, first + 6))
        last = length - (number != NUM_SEQS + 1)
        spans.append(
            Span(number, 7, tokens, table, last, sampling_of(number), logprobs=1, request_index=number)
        )
        first += 6
        if number - NUM_SEQS < 2:
            spans.append(
                Span(number - NUM_SEQS, 60, (4,), pages(number - NUM_SEQS), 0, sampling_of(number), 2)
            )
    return StepPlan((Pass(kind, tuple(spans), LONG),))


@pytest.mark.parametrize("kind", [PassKind.FAST, PassKind.CANONICAL])
def test_long_passes_end_before_the_last_layer(decoder: Decoder, kind: PassKind) -> None:
    whole, eager, graphed = (open_runner(decoder) for _ in range(3))
    whole._last_layer = LastLayer(decoder, whole._store.layers, needs_all_tokens=True)
    if not HAS_GPU:
        for runner in (eager, graphed):
            runner._last_layer._reference_tokens = 1
    sizes = ((LONG,), ()) if kind is PassKind.FAST else ((), (LONG,))
    if HAS_GPU:
        graphed.capture(*sizes, max_len=512)
    else:
        with torch.inference_mode():
            graphed._graphs.capture(*sizes, 8, FakeRecorder())
    plan = long_pass(kind)
    found = eager.run(plan)
    with counting_replays(graphed) as replays:
        assert graphed.run(plan) == found
    assert replays == [LONG]
    assert_same_kv(eager, graphed)
    expected = whole.run(plan)
    assert [len(samples) for samples in found[0].samples] == [len(samples) for samples in expected[0].samples]
    if kind is PassKind.CANONICAL:
        assert found == expected
        assert_same_kv(eager, whole)


def test_plans_with_unknown_tokens_can_be_started_before_reading(
    eager: ModelRunner, graphed: ModelRunner
) -> None:
    """Everything is enqueued before anything is read."""
    num_steps = 12 if HAS_GPU else 2
    results = [eager.run(prompts())]
    for step in range(num_steps):
        results.append(eager.run(decode(step, tokens_of(results[-1]), PADDED)))
    reads = [graphed.start(prompts())]
    reads += [graphed.start(decode(step, [UNKNOWN_TOKEN] * NUM_SEQS, PADDED)) for step in range(num_steps)]
    assert [read() for read in reads] == results
    assert_same_kv(eager, graphed)


def test_capture_writes_no_kv(eager: ModelRunner, graphed: ModelRunner) -> None:
    for runner in (eager, graphed):
        runner.run(prompts())
    capture(graphed)
    assert_same_kv(eager, graphed)


def test_fast_pass_takes_the_next_larger_graph(eager: ModelRunner, graphed: ModelRunner) -> None:
    tokens = tokens_of(eager.run(prompts()))
    graphed.run(prompts())
    count, size = (5, 8) if HAS_GPU else (1, 2)
    plan = decode(0, tokens[:count], count + HAS_GPU)
    with counting_replays(graphed) as replays:
        found = graphed.run(plan)
    assert replays == [size]
    assert found == eager.run(replace(plan, passes=(replace(plan.passes[0], num_tokens_padded=size),)))


@pytest.mark.skipif(not HAS_GPU, reason="a CPU never waits")
def test_start_does_not_synchronize_with_the_device(eager: ModelRunner, graphed: ModelRunner) -> None:
    """CUDA raises an error if the host waits."""
    for runner in (eager, graphed):
        plans = [prompts(), *(decode(step, [UNKNOWN_TOKEN] * NUM_SEQS, 16) for step in range(2))]
        plans.append(long_pass(PassKind.FAST))
        for plan in plans:  # the first compilation and allocation may wait
            runner.run(plan)
        torch.cuda.set_sync_debug_mode("error")
        try:
            reads = [runner.start(plan) for plan in plans]
        finally:
            torch.cuda.set_sync_debug_mode("default")
        for read in reads:
            read()


def test_window_with_every_sampling_feature_equals_single_tokens(eager: ModelRunner) -> None:
    """With penalties, token lists, bad words, bias and a grammar."""
    params = SamplingParams(
        temperature=0.7,
        repetition_penalty=1.4,
        presence_penalty=0.5,
        frequency_penalty=0.2,
        bad_token_ids=[7],
        logit_bias={9: 3.0},
        min_tokens=60,
        max_tokens=99,
    )
    grammar = FixedGrammar(lambda candidates, count: [mask(*range(3, 300), vocab=VOCAB), b"", None][-count:])
    sampling = Sampling(params, 11, 20, (4, 5), ((PROMPT[30], 31),), eos_ids=(4,))
    free = Span(0, 28, PROMPT[28:31], pages(0), 0, sampling, 2, history=PROMPT[:28], with_checksums=True)
    whole = replace(free, constraint=Constraint(grammar, PROMPT[29:31]))
    (window,) = eager.run(StepPlan((Pass(PassKind.CANONICAL, (free,), 3),)))
    (constrained,) = eager.run(StepPlan((Pass(PassKind.CANONICAL, (whole,), 3),)))
    assert constrained.samples[0][2] == window.samples[0][2]
    assert constrained.samples[0][1].token_id == -1
    for index in range(3):
        at = 28 + index
        alone = replace(free, start=at, token_ids=PROMPT[at : at + 1], history=PROMPT[:at])
        (found,) = eager.run(StepPlan((Pass(PassKind.CANONICAL, (alone,), 1),)))
        assert found.samples[0][0].token_id == window.samples[0][index].token_id


def test_penalties_and_bad_words_of_unknown_tokens_have_the_bits_of_known_ones(
    eager: ModelRunner, graphed: ModelRunner
) -> None:
    """The tokens before the span are beside the KV; its own are in the ring."""
    params = SamplingParams(
        temperature=0.7, repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.2
    )
    first = Sampling(SamplingParams(temperature=0), 11, 20)
    for runner in (eager, graphed):
        prompt = Span(0, 0, PROMPT[:30], pages(0), 29, first, 0, request_index=1)
        (prefill,) = runner.run(StepPlan((Pass(PassKind.FAST, (prompt,), 30),)))
        token_id = prefill.samples[0][0].token_id
        sampling = Sampling(params, 11, 20, (), ((token_id, 31), (PROMPT[29], token_id, 40), (50,)))
        known = Span(0, 30, (token_id,), pages(0), 0, sampling, 2, history=PROMPT[:30], with_checksums=True)
        unknown = replace(known, token_ids=(UNKNOWN_TOKEN,), history=(), request_index=1)
        found = [runner.run(StepPlan((Pass(PassKind.FAST, (one,), 2),))) for one in (known, unknown)]
        assert found[0] == found[1]
        assert found[0][0].samples[0][0].token_id not in (31, 40, 50)


def test_spot_check_detects_one_bit_of_a_key(eager: ModelRunner) -> None:
    """Keys are stored transposed."""
    num_tokens = 256 if HAS_GPU else 10
    one = Span(0, 60, PROMPT[60:70], pages(0), 0, sampling_of(0), with_checksums=True)
    (result,) = eager.run(StepPlan((Pass(PassKind.CANONICAL, (one,), num_tokens),)))
    bits = tuple(each.logits_checksum or 0 for each in result.samples[0])
    again = Span(0, 62, PROMPT[62:70], (40, 41), 2, sampling_of(0))
    check = Pass(PassKind.CHECK, (again,), num_tokens, original_pages=pages(0)[:2], logits_checksums=bits[4:])
    assert eager.run(StepPlan((check,)))[0].mismatch is None
    page, offset = pages(0)[65 // PAGE], 65 % PAGE
    keys = eager._store.layers[0].keys
    slot = keys[page, 1, 5, offset].clone()
    keys[page, 1, 5, offset] = slot + 1
    assert eager.run(StepPlan((check,)))[0].mismatch == "keys of layer 0 at position 65"
    keys[page, 1, 5, offset] = slot
    assert eager.run(StepPlan((check,)))[0].mismatch is None
