"""Holdfast against transformers in fp32, on the same files.

Greedy tokens are compared by one forward pass of transformers over prompt and answer: if its argmax
after every prefix is the answer's next token, then its own greedy answer is this answer.
"""

from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
import transformers
from torch import Tensor

from holdfast.core.pooling import PoolingType
from holdfast.core.results import Result
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import Pass, PassKind, Sampling, Span, SpanState
from holdfast.engine.llm.llm import LLM
from holdfast.models.checkpoint import open_checkpoint
from holdfast.worker.input_batch import make_input_batch, send_batch
from holdfast.worker.kv_store import KVStore
from support.arrays import as_tensor

TOLERANCE = 1e-4


def open_reference(path: Path) -> Any:
    """transformers' own reading of a folder or a GGUF file, in fp32."""
    where: dict[str, Any] = {"pretrained_model_name_or_path": path}
    if path.is_file():
        where = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    with (
        pytest.MonkeyPatch.context() as patch
    ):  # it reads the file twice, and maps the names for every module
        for name in ("GGUFReader", "get_tensor_name_map"):
            patch.setattr(gguf, name, cache(getattr(gguf, name)))
        where |= {"dtype": torch.float32, "attn_implementation": "eager"}  # others have no soft cap
        return transformers.AutoModelForCausalLM.from_pretrained(**where).eval()


def with_our_tensors(model: Any, path: Path, *, norms_have_one: bool = False) -> Any:
    """transformers' model of a published configuration, with the tensors of our checkpoint; its head is tied.

    norms_have_one: the file's norms have 1 added, and transformers adds it again.
    """
    checkpoint = open_checkpoint(path)
    tensors = {name: checkpoint.tensor(name, torch.float32) for name in checkpoint.names()}
    if norms_have_one:
        tensors = {name: value - 1 if "norm" in name else value for name, value in tensors.items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    return model.eval()


def reference_logits(model: Any, token_ids: list[int]) -> Tensor:
    """fp32 [tokens, vocab]"""
    with torch.inference_mode():
        return model(torch.tensor([token_ids]), use_cache=False).logits[0]


def raw_logits(llm: LLM, token_ids: list[int], chunk: int, canonical: bool) -> Tensor:
    """Holdfast's logits of a prompt, in passes of `chunk` tokens: fp32 [tokens, vocab]."""
    runner = llm.engine.runner
    decoder = runner._decoder  # type: ignore[attr-defined]
    page_size = decoder.backend.page_size
    num_pages = -(-len(token_ids) // page_size)
    store = KVStore(num_pages, decoder.config, decoder.backend)
    sampling = Sampling(SamplingParams(), 0, len(token_ids))
    pages = tuple(reversed(range(num_pages)))
    kind = PassKind.CANONICAL if canonical else PassKind.FAST
    parts = []
    with torch.inference_mode():
        for start in range(0, len(token_ids), chunk):
            ids = tuple(token_ids[start : start + chunk])
            state = SpanState(0, start, start + len(ids)) if store.states is not None else None
            span = Span(0, start, ids, pages, 0, sampling, state=state)
            one = Pass(kind, (span,), chunk if canonical else len(ids))
            batch = make_input_batch(one, page_size)
            sent = send_batch(batch, one.num_tokens_padded, decoder.backend.device)
            hidden = decoder.forward(sent.forward, store.layers, canonical=canonical)[: len(ids)]
            parts.append(as_tensor(decoder.logits(hidden, canonical=canonical)))
    return torch.cat(parts)


def assert_greedy_parity(model: Any, result: Result, tolerance: float = TOLERANCE) -> None:
    """The same greedy tokens, and reported logprobs within the tolerance."""
    prompt, answer = list(result.prompt_token_ids), list(result.token_ids)
    logits = reference_logits(model, prompt + answer[:-1])[len(prompt) - 1 :]
    assert logits.argmax(-1).tolist() == answer
    expected = logits.log_softmax(-1)
    assert result.logprobs is not None
    for row, (token_id, reported) in enumerate(zip(answer, result.logprobs, strict=True)):
        assert reported.token_id == token_id
        assert abs(reported.logprob - expected[row, token_id].item()) < tolerance
        best = expected[row].topk(len(reported.top)).values
        found = torch.tensor([value for _, value in reported.top])
        assert (found - best).abs().max() < tolerance
        of_ids = expected[row, [id_ for id_, _ in reported.top]]
        assert (found - of_ids).abs().max() < tolerance


def assert_parity(
    path: Path, model: Any, prompts: list[list[int]], kernels: Any, max_tokens: int, **limits: Any
) -> None:
    """Tokens, logprobs, raw logits and embeddings of every prompt, as ordinary and deterministic requests.

    The torch backend's answers are verified: its certificate would take longer than everything else.
    """
    pass_rows, certification = (64, "startup") if kernels == "c" else (32, "background")
    limits = {"max_pass_tokens": pass_rows, "certification": certification} | limits
    llm = LLM(str(path), dtype="fp32", kernels=kernels, max_num_seqs=8, **limits)
    greedy = [
        SamplingParams(
            max_tokens=max_tokens, temperature=0, ignore_eos=True, logprobs=5, deterministic=deterministic
        )
        for deterministic in (False, True)
        for _ in prompts
    ]
    results = llm.generate(prompts * 2, greedy)
    llm.engine.check()
    for ordinary, deterministic in zip(results[: len(prompts)], results[len(prompts) :], strict=True):
        assert deterministic.token_ids == ordinary.token_ids
        assert deterministic.determinism in ("certified", "verified")
        assert_greedy_parity(model, ordinary)
        assert_greedy_parity(model, deterministic)
    rows = llm.engine.scheduler.config.reference_tokens
    for token_ids in prompts:
        expected = reference_logits(model, token_ids)
        for found in (raw_logits(llm, token_ids, rows, True), raw_logits(llm, token_ids, 23, False)):
            assert (found - expected).abs().max() < TOLERANCE
    if kernels == "c":
        assert_embedding_parity(llm, model, prompts)


def assert_embedding_parity(llm: LLM, model: Any, prompts: list[list[int]]) -> None:
    """Last and mean of the hidden states after the last norm, as they are and normalised."""
    poolings: tuple[PoolingType, ...] = ("last", "mean")
    for pooling, deterministic in product(poolings, (False, True)):
        raw = llm.embed(prompts, pooling=pooling, normalize=False, deterministic=deterministic)
        unit = llm.embed(prompts, pooling=pooling, deterministic=deterministic)
        for token_ids, found, normalized in zip(prompts, raw, unit, strict=True):
            with torch.inference_mode():
                states = model.model(torch.tensor([token_ids]), use_cache=False).last_hidden_state[0]
            expected = states[-1] if pooling == "last" else states.mean(0)
            assert (torch.tensor(found.embedding) - expected).abs().max() < TOLERANCE
            assert (torch.tensor(normalized.embedding) - expected / expected.norm()).abs().max() < TOLERANCE
            assert abs(torch.tensor(normalized.embedding, dtype=torch.float64).norm().item() - 1) < 1e-6
