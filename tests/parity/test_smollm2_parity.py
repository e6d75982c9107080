"""The default model in fp32: 64 greedy tokens of three prompts are those of transformers with the
same weights.

The reference has the published configuration and the tensors of our checkpoint:
`models/test_smollm2.py` compares their bits with the gguf package's. transformers' own GGUF loader
takes ten times as long.

Its logits reach 45 after 30 layers, where fp32 has an error of about 1e-4: transformers in fp32
differs by up to 1.1e-4 from transformers in fp64. So the largest difference may be twice that, and
the mean a tenth.
"""

import pytest
import torch
import transformers
from transformers.initialization import no_init_weights

from holdfast import SamplingParams
from holdfast.engine.llm.llm import LLM
from holdfast.models.locate import locate
from parity.compare import assert_greedy_parity, raw_logits, reference_logits, with_our_tensors

pytestmark = pytest.mark.smollm2

PROMPTS = [
    "The capital of France is",
    "In 1969, 3 astronauts left for the Moon. The first of them",
    "def fibonacci(n):\n    ",
]


# Of HuggingFaceTB/SmolLM2-135M-Instruct
PUBLISHED = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
    "tie_word_embeddings": True,
}


def test_64_greedy_tokens_match_transformers() -> None:
    path = locate(None).path
    llm = LLM(
        str(path), dtype="fp32", max_pass_tokens=64, max_num_seqs=8, max_model_len=512, determinism="off"
    )
    greedy = SamplingParams(max_tokens=64, temperature=0, ignore_eos=True, logprobs=5)
    results = llm.generate(PROMPTS, greedy)
    with no_init_weights():  # random weights would take as long as everything else here
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**PUBLISHED, dtype=torch.float32))
    model = with_our_tensors(model, path)
    for result in results:
        assert len(result.token_ids) == 64
        assert_greedy_parity(model, result, tolerance=2e-4)
    token_ids = list(results[1].prompt_token_ids)
    found = raw_logits(llm, token_ids, llm.engine.scheduler.config.reference_tokens, True)
    difference = (found - reference_logits(model, token_ids)).abs()
    assert difference.max() < 2e-4
    assert difference.mean() < 2e-5
