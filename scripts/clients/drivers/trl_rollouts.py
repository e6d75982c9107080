"""TRL: GRPO whose rollouts come from `holdfast.LLM`, with a tiny random model.

The rollout function saves the policy and loads it again, so every rollout is made by the current
weights. Two trainings with the same seeds must take the same steps: the same completions, the same
logprob bits, the same losses.
"""

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # rollout_func warns that it may change

import torch
from checks import Target
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from holdfast import LLM, SamplingParams

CLIENT = "trl"
_STEPS = 2


def _tokenizer() -> PreTrainedTokenizerFast:
    """Bytes as tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>")


def _policy(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config)


class Rollouts:
    """A rollout function of TRL. `made` holds all completions and logprobs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.made: list[tuple[list[int], list[float]]] = []

    def __call__(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        trainer.save_model(str(self._folder))  # the weights and the tokenizer
        params = [
            SamplingParams(max_tokens=8, seed=1000 * trainer.state.global_step + number, logprobs=0)
            for number in range(len(prompts))
        ]
        with LLM(str(self._folder), deterministic=True, dtype="float32") as llm:
            results = llm.generate(prompts, params)
        completions = [list(result.token_ids) for result in results]
        logprobs = [[one.logprob for one in result.logprobs or ()] for result in results]
        self.made += zip(completions, logprobs, strict=True)
        prompt_ids = [list(result.prompt_token_ids) for result in results]
        return {"prompt_ids": prompt_ids, "completion_ids": completions, "logprobs": logprobs}


def _train() -> tuple[list[Any], list[float]]:
    """The rollouts and the losses of one training."""
    tokenizer = _tokenizer()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        rollouts = Rollouts(Path(folder, "policy"))
        trainer = GRPOTrainer(
            model=_policy(tokenizer),
            reward_funcs=lambda completions, **_: [float(len(set(text))) for text in completions],
            args=GRPOConfig(
                output_dir=folder,
                max_steps=_STEPS,
                per_device_train_batch_size=4,
                num_generations=4,
                max_completion_length=8,
                learning_rate=1e-2,
                seed=0,
                use_cpu=True,
                bf16=False,
                report_to=[],
                logging_steps=1,
                save_strategy="no",
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_list([{"prompt": "The sea is"}, {"prompt": "A coin is"}]),
            processing_class=tokenizer,
            rollout_func=rollouts,
        )
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return rollouts.made, losses


def check_grpo(target: Target) -> None:
    """GRPOTrainer with a rollout_func on holdfast.LLM: two trainings take the same steps"""
    made, losses = _train()
    assert len(made) == 4 * _STEPS and len(losses) == _STEPS
    assert (made, losses) == _train()
