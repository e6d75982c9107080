"""Loading a decoder: each tensor once, in its place, without sharing the file's memory.

And partial forward passes.
"""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.models.decoder import Decoder, LayerHook
from holdfast.models.dummy import DummyCheckpoint, tiny_config
from holdfast.models.weight_loader import load_decoder
from holdfast.numerics.backends.select_backend import open_backend
from holdfast.numerics.forward_batch import ForwardBatch, KVLayer
from holdfast.numerics.layer import LayerWeights


def make(**changes: object) -> tuple[DummyCheckpoint, Decoder, list[tuple[int, int]]]:
    checkpoint = DummyCheckpoint(tiny_config(**changes), deviation=0.25)
    told: list[tuple[int, int]] = []
    backend = open_backend(torch.float32, kernels="torch", num_threads=1)
    decoder = load_decoder(checkpoint, backend, torch.float32, 64, lambda *at: told.append(at))
    return checkpoint, decoder, told


def test_progress_counts_every_tensor_once() -> None:
    checkpoint, _, told = make(attention_bias=True)
    total = len(checkpoint.names())
    assert told == [(number + 1, total) for number in range(total)]


def test_fused_weights_are_concatenated() -> None:
    checkpoint, decoder, _ = make(attention_bias=True)
    qkv = decoder.layers[1].qkv
    names = [f"model.layers.1.self_attn.{one}_proj" for one in "qkv"]
    assert torch.equal(qkv.data, torch.cat([checkpoint.tensor(f"{name}.weight") for name in names]))
    assert qkv.bias is not None
    assert torch.equal(qkv.bias, torch.cat([checkpoint.tensor(f"{name}.bias") for name in names]))
    gate_up = [checkpoint.tensor(f"model.layers.0.mlp.{one}_proj.weight") for one in ("gate", "up")]
    assert torch.equal(decoder.layers[0].gate_up.data, torch.cat(gate_up))


def test_tied_head_shares_the_embedding_if_pack_does_not_copy() -> None:
    _, decoder, _ = make(tie_word_embeddings=True)
    head = list(decoder.linears())[-1]
    assert head.is_head
    assert head.linear.data.data_ptr() == decoder._embedding.data_ptr()


BATCH = ForwardBatch(
    token_ids=torch.tensor([5, 6, 7]),
    positions=torch.arange(3),
    slots=torch.arange(3),
    span_starts=torch.tensor([0, 3], dtype=torch.int32),
    page_table=torch.zeros((1, 1), dtype=torch.int32),
)


def new_kv(decoder: Decoder) -> list[KVLayer]:
    return [KVLayer(torch.zeros(1, 2, 16, 16), torch.zeros(1, 2, 16, 16)) for _ in decoder.layers]


def test_body_and_last_layer_equal_forward() -> None:
    _, decoder, _ = make()
    kv = new_kv(decoder)
    whole = decoder.forward(BATCH, kv, canonical=True)
    assert whole.shape == (3, 64)
    residual, x = decoder.forward_body(BATCH, kv, canonical=True)
    assert not torch.equal(x, whole)
    assert torch.equal(decoder.forward_last_layer(residual, x, BATCH, kv, canonical=True), whole)


@pytest.mark.parametrize("last", [None, 1])
def test_forward_body_writes_the_kv_of_the_last_layer_only(
    monkeypatch: pytest.MonkeyPatch, last: int | None
) -> None:
    _, decoder, _ = make()
    assert len(decoder.layers) == 2
    whole, kept = new_kv(decoder), new_kv(decoder)
    decoder.forward(BATCH, whole, canonical=True)
    ran, seen = [], []
    backend = decoder.backend
    layers = backend.layers

    def look(
        residual: Tensor, x: Tensor, weights: Sequence[LayerWeights], *rest: Any, canonical: bool
    ) -> None:
        ran.extend(weights)
        layers(residual, x, weights, *rest, canonical=canonical)

    monkeypatch.setattr(backend, "layers", look)
    layer_hook = None if last is None else LayerHook(lambda done, residual, x: seen.append(done), (last,))
    decoder.forward_body(BATCH, kept, canonical=True, layer_hook=layer_hook)
    for a, b in zip(whole, kept, strict=True):
        assert torch.equal(a.keys, b.keys) and torch.equal(a.values, b.values) and a.values.any()
    assert ran == [decoder.layers[0]]
    assert seen == ([] if last is None else [1])


def test_forward_body_rejects_a_hook_after_the_last_layer() -> None:
    _, decoder, _ = make()
    with pytest.raises(AssertionError, match="hook is for the last layer"):
        decoder.forward_body(
            BATCH, new_kv(decoder), canonical=True, layer_hook=LayerHook(lambda *what: None, (2,))
        )


def test_with_backend_shares_the_weights() -> None:
    _, decoder, _ = make()
    other = open_backend(torch.float32, kernels="torch", num_threads=1)
    second = decoder.with_backend(other)
    assert second.backend is other
    assert decoder.backend is not other
    assert all(a is b for a, b in zip(second.layers, decoder.layers, strict=True))
