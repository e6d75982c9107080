"""The parallel form has the outputs and gradients of the reference."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from holdfast.thinking.config import ThinkingConfig
from holdfast_thinking.model.batch import Batch
from holdfast_thinking.model.loss import Losses, LossWeights, TokenCounts, count_tokens, packed_loss
from holdfast_thinking.model.model import ThinkingModel
from holdfast_thinking.model.packed import pack, send
from holdfast_thinking.run.validation import validate
from support.thinking_models import END, VOCAB, named_weights, thinking_config, tiny_thinker
from thinking.reference import Reference, ReferenceState

CPU = torch.device("cpu")


def _batch(config: ThinkingConfig, seed: int = 0, num_texts: int = 5) -> Batch:
    """Random texts of every length, thoughts of every length, trivial ones among them."""
    rng, num_chunks, longest = np.random.default_rng(seed), 4, 3
    num_tokens = rng.integers(6, num_chunks * 4 + 1, num_texts)
    num_tokens[0] = num_chunks * 4
    ids = rng.integers(3, VOCAB, (num_texts, num_chunks * 4))
    ids[np.arange(num_chunks * 4) >= num_tokens[:, None]] = 0
    lens = rng.integers(0, longest + 1, (num_texts, num_chunks))
    thoughts = rng.integers(3, VOCAB, (num_texts, num_chunks, longest))
    thoughts[np.arange(longest) >= lens[:, :, None]] = -1
    num_prompt = rng.integers(2, num_tokens)
    num_prompt[0] = 11  # ends within a chunk
    batch = Batch(ids, num_prompt, num_tokens, thoughts)
    return replace(batch, thoughts=np.where(batch.is_thought_about(config)[:, :, None], thoughts, -1))


RESET = (7, 8)


def _plant_resets(batch: Batch) -> None:
    """In all texts, in the prompt and behind it, across the end of a chunk and inside one."""
    for at in (3, 5, 11):
        batch.token_ids[:, at : at + 2] = np.where(
            np.arange(at, at + 2) < batch.num_tokens[:, None], RESET, batch.token_ids[:, at : at + 2]
        )


def _read(reference: Reference, batch: Batch, row: int) -> ReferenceState:
    gold = [tuple(int(id_) for id_ in each if id_ >= 0) for each in batch.thoughts[row]]
    return _read_text(reference, batch, row, gold)


def _read_text(
    reference: Reference, batch: Batch, row: int, gold: list[tuple[int, ...]] | None = None
) -> ReferenceState:
    ids, num_prompt = batch.token_ids[row, : batch.num_tokens[row]].tolist(), int(batch.num_prompt[row])
    reading = reference.read(reference.start(), ids[:num_prompt], gold)
    was = reference.thinking
    assert was is not None
    reference.thinking = replace(was, while_answering=True)  # the batch says where nothing is thought
    reference.read(reading, ids[num_prompt:], gold, prompt=False)
    reference.thinking = was
    return reading


UNTIED = {"tie_word_embeddings": False}
NO_WINDOW = {"use_sliding_window": False}


def long(*case: object) -> object:
    """A case of the long form."""
    return pytest.param(*case, marks=pytest.mark.long)


@pytest.mark.parametrize(
    ("family", "fields", "carry", "resets", "settle"),
    [
        ("llama", {}, False, (), False),
        ("llama", {}, True, (), True),
        ("mistral", {}, True, RESET, True),
        ("qwen3", UNTIED, True, RESET, False),
        long("llama", {}, False, (), True),
        long("llama", {}, True, RESET, False),
        long("mistral", {}, True, RESET, False),
        long("qwen3", UNTIED, True, RESET, True),
        long("qwen2", NO_WINDOW, True, RESET, True),
    ],
)
def test_parallel_forward_equals_the_reference(
    family: str, fields: dict[str, object], carry: bool, resets: tuple[int, ...], settle: bool
) -> None:
    thinking = thinking_config(carry=carry, reset_ids=resets, settle=settle)
    model = tiny_thinker(family, thinking, **fields)
    reference = Reference(model.config, model.thinking, dict(model.named_parameters()))
    batch = _batch(thinking)
    ends = batch.ends(thinking)
    assert (ends % 4 > 0).any() == settle
    if resets:
        _plant_resets(batch)
        assert 0 < batch.is_reset(thinking).sum() < batch.is_reset(thinking).size
    with torch.no_grad():
        texts = send(pack(batch, model.pack_spec), CPU)
        rows, h = model(texts)
        logits, gold = model.logits(rows), torch.from_numpy(batch.thoughts)
        for row in range(len(batch)):
            reading = _read(reference, batch, row)
            own = torch.nonzero(texts.texts == row)[:, 0]
            torch.testing.assert_close(logits[own], torch.stack(reading.logits), atol=2e-5, rtol=1e-4)
            for chunk, expected in enumerate(reading.thought_logits):
                seen = h[own][ends[row, chunk] - 4 : ends[row, chunk]]
                mine = model.logits(model.thought_rows(seen[None], gold[row : row + 1, chunk]))[0]
                assert expected is not None
                torch.testing.assert_close(mine[: len(expected)], expected, atol=2e-5, rtol=1e-4)


def _loss(model: ThinkingModel, batch: Batch, counts: TokenCounts, weights: LossWeights) -> Losses:
    return packed_loss(model, send(pack(batch, model.pack_spec), CPU), counts, weights)


def _reference_loss(reference: Reference, batch: Batch, weights: LossWeights) -> torch.Tensor:
    """The loss computed with the reference, token by token."""
    sums, counts = {"answer": [], "thought": []}, {"answer": 0, "thought": 0}
    assert reference.thinking is not None
    is_due = batch.is_thought_about(reference.thinking)
    for row in range(len(batch)):
        reading = _read(reference, batch, row)
        for position in range(int(batch.num_prompt[row]), int(batch.num_tokens[row])):
            target = torch.tensor(int(batch.token_ids[row, position]))
            sums["answer"].append(F.cross_entropy(reading.logits[position - 1], target))
            counts["answer"] += 1
        for chunk, logits in enumerate(reading.thought_logits):
            if is_due[row, chunk] and logits is not None:
                targets = torch.tensor([*reading.thoughts[chunk], END])
                sums["thought"].append(F.cross_entropy(logits, targets, reduction="sum"))
                counts["thought"] += len(targets)
    return sum(
        (getattr(weights, part) * torch.stack(sums[part]).sum() / counts[part] for part in sums),
        torch.zeros(()),
    )


@pytest.mark.parametrize(
    ("family", "fields", "while_answering", "carry", "settle"),
    [
        ("llama", {}, True, False, False),
        ("llama", {}, False, False, True),
        ("qwen2", NO_WINDOW, True, True, False),
        ("qwen3", UNTIED, True, True, True),
        long("llama", {}, True, False, True),
        long("llama", {}, False, False, False),
        long("llama", {}, True, True, True),
        long("mistral", {}, True, True, False),
        long("qwen3", UNTIED, True, True, False),
    ],
)
def test_gradients_equal_those_of_the_reference(
    family: str, fields: dict[str, object], while_answering: bool, carry: bool, settle: bool
) -> None:
    thinking = thinking_config(while_answering=while_answering, carry=carry, settle=settle)
    model = tiny_thinker(family, thinking, **fields)
    model.double()
    weights = LossWeights(answer=1.0, thought=0.7)
    batch = _batch(
        thinking, seed=4
    )  # without while_answering nothing is thought after the prompt's last chunk
    named = named_weights(model)
    expected = _reference_loss(Reference(model.config, model.thinking, named), batch, weights)
    expected.backward()
    mine = _loss(model, batch, count_tokens(batch, thinking), weights).total
    mine.backward()
    torch.testing.assert_close(mine.double(), expected, atol=1e-5, rtol=1e-5)
    for name, parameter in model.named_parameters():
        want = named[name].grad
        assert (want is None) == (parameter.grad is None), name
        if want is not None:
            torch.testing.assert_close(parameter.grad, want, atol=1e-5, rtol=1e-4, msg=name)


def test_micro_batches_have_the_gradients_of_one_batch() -> None:
    batch, weights = _batch(thinking_config(), seed=5, num_texts=6), LossWeights()
    counts = count_tokens(batch, thinking_config())
    gradients = []
    for cuts in ([(0, 6)], [(0, 2), (2, 5), (5, 6)]):
        model = tiny_thinker()
        for first, last in cuts:
            _loss(model, batch.take_range(first, last), counts, weights).total.backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name in gradients[0]:
        torch.testing.assert_close(gradients[0][name], gradients[1][name], atol=1e-6, rtol=1e-4, msg=name)


@pytest.mark.parametrize(
    ("family", "carry", "resets", "settle"),
    [
        ("llama", False, (), True),
        ("mistral", False, (), False),
        ("llama", True, RESET, False),
        ("llama", True, RESET, True),
    ],
)
def test_validation_has_the_thoughts_of_the_reference(
    family: str, carry: bool, resets: tuple[int, ...], settle: bool
) -> None:
    thinking = thinking_config(carry=carry, reset_ids=resets, settle=settle)
    model: ThinkingModel = tiny_thinker(family, thinking)
    reference = Reference(model.config, model.thinking, dict(model.named_parameters()))
    batch = _batch(thinking, seed=6, num_texts=8)
    if resets:
        _plant_resets(batch)
    outcome = validate(model, batch, CPU)
    num_told = 0
    with torch.no_grad():
        for row in range(len(batch)):
            reading = _read_text(reference, batch, row)
            for chunk, thought in enumerate(reading.thoughts):
                own = outcome.thoughts[row, chunk]
                assert tuple(own[own >= 0].tolist()) == thought
                num_told += bool(thought)
    assert num_told > 0
