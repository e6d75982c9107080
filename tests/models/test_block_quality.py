"""The default model in quantised blocks: near the dequantised model in fp32, on real text."""

from collections.abc import Callable

import gguf
import pytest
import torch
from torch import Tensor

from holdfast.models.checkpoint import open_checkpoint
from holdfast.models.config import DecoderConfig
from holdfast.models.gguf.checkpoint import GgufCheckpoint
from holdfast.models.locate import locate
from holdfast.models.weight_loader import load_decoder
from holdfast.numerics.arrays import host
from holdfast.numerics.backends.select_backend import open_backend
from holdfast.numerics.blocks import Blocks
from holdfast.numerics.forward_batch import ForwardBatch
from holdfast.text.tokenizer import open_tokenizer

pytestmark = [pytest.mark.smollm2, pytest.mark.long]

TEXT = """The sea covers most of the Earth. Rivers carry salt from rocks into it, and water evaporates while the
salt stays behind; that is why sea water tastes salty although rain does not. Along cold coasts, kelp holds on to
the rock with a holdfast: a tangle of branching, root-like fingers that does not take up food, as a root would, but
only keeps the plant in its place through storms. Small animals live between the fingers. In 1859 Charles Darwin
wrote that the number of living creatures that depend on kelp is wonderful. Divers who counted them found more than
a hundred species in a single holdfast. When a storm tears one loose, the whole plant drifts away, and with it
everything that lived there. Some of them reach other islands that way."""


class Requantized:
    """A GGUF checkpoint with its matrices in another format."""

    def __init__(self, base: GgufCheckpoint, name: str) -> None:
        self.base, self.format = base, name
        self.path = base.path
        self.config: DecoderConfig = base.config

    def names(self) -> tuple[str, ...]:
        return self.base.names()

    def shape(self, name: str) -> tuple[int, ...]:
        return self.base.shape(name)

    def release(self) -> None: ...

    def block_formats(self) -> frozenset[str]:
        return frozenset({self.format})

    def blocks(self, name: str) -> Blocks | None:
        if len(self.shape(name)) != 2:
            return None
        kind = gguf.GGMLQuantizationType[self.format]
        values = self.base.tensor(name, torch.float32).numpy()
        return Blocks(self.format, host(gguf.quants.quantize(values, kind)), values.shape[1])

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        blocks = self.blocks(name)
        if blocks is None:
            return self.base.tensor(name, dtype)
        kind = gguf.GGMLQuantizationType[self.format]
        values = torch.from_numpy(gguf.quants.dequantize(blocks.data.numpy(), kind))
        return values if dtype is None else values.to(dtype)


def logprobs(checkpoint: Requantized, formats: frozenset[str]) -> Tensor:
    backend = open_backend(torch.float32, kernels="c", num_threads=2, block_formats=formats)
    decoder = load_decoder(checkpoint, backend, torch.float32, 512)  # type: ignore[arg-type]
    ids = torch.tensor(open_tokenizer(checkpoint.path).encode(TEXT))
    count, config = len(ids), checkpoint.config
    num_pages = -(-count // backend.page_size)
    pages = [backend.new_kv_layer(num_pages, config.num_kv_heads, config.head_dim) for _ in decoder.layers]
    batch = ForwardBatch(
        *(ids, torch.arange(count), torch.arange(count), torch.tensor([0, count], dtype=torch.int32)),
        torch.arange(num_pages, dtype=torch.int32)[None],
    )
    hidden = decoder.forward(batch, pages, canonical=True)
    return decoder.logits(hidden, canonical=True).log_softmax(-1)


@pytest.fixture(scope="module")
def requantized() -> Callable[[str], Requantized]:
    base = open_checkpoint(locate(None).path)
    assert isinstance(base, GgufCheckpoint)
    return lambda name: Requantized(base, name)


@pytest.mark.parametrize("name", ["Q8_0", "Q5_1", "Q4_1", "Q4_0"])
def test_divergence_from_the_dequantised_model_is_small(
    requantized: Callable[[str], Requantized], name: str
) -> None:
    checkpoint = requantized(name)
    exact, found = logprobs(checkpoint, frozenset()), logprobs(checkpoint, checkpoint.block_formats())
    divergence = (exact.exp() * (exact - found)).sum(-1).mean().item()
    print(f"{name}: mean KL {divergence:.5f}")
    assert 0.0 < divergence < 0.01
