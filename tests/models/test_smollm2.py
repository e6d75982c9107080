"""The default model: every tensor has the bits of the gguf package's dequantisation, in Hugging
Face's row order."""

import gguf
import pytest
import torch

from holdfast.models.checkpoint import open_checkpoint
from holdfast.models.gguf.names import gguf_name
from holdfast.models.gguf.reader import GgufFile
from holdfast.models.locate import locate
from models.gguf_writer import interleave

pytestmark = pytest.mark.smollm2


def test_every_tensor_matches_gguf_package_bits() -> None:
    checkpoint = open_checkpoint(locate(None).path)
    config = checkpoint.config
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (30, 9, 3, 64)
    assert (config.eos_token_ids, config.bos_token_id, config.tie_word_embeddings) == ((2,), 1, True)
    assert sum(torch.Size(checkpoint.shape(name)).numel() for name in checkpoint.names()) == 134_515_008
    file = GgufFile(checkpoint.path)
    for name in checkpoint.names():
        stored_name = gguf_name(name, checkpoint.config)
        stored, shape = file.tensors[stored_name].stored, checkpoint.shape(name)
        rows = file.raw(stored_name).reshape(*shape[:-1], -1)
        expected = torch.from_numpy(gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[stored.name]))
        found = checkpoint.tensor(name, torch.float32)
        assert torch.equal(checkpoint.tensor(name, torch.bfloat16), found.bfloat16()), name
        heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}.get(name.split(".")[-2])
        if heads is not None:
            found = torch.from_numpy(interleave(found.numpy(), heads))
        assert torch.equal(found.view(torch.int32), expected.view(torch.int32)), name
