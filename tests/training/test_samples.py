"""A model's own answers to general prompts, as a file of chat texts."""

import json
from pathlib import Path

import pytest

from holdfast import LLM
from holdfast.errors import ConfigError
from holdfast_thinking.data.jsonl import read_chat
from holdfast_thinking.data.samples import sample_prompts, training_prompts, write_samples
from support.tiny import tiny_model


def test_answers_are_written_as_chat_texts(tmp_path: Path) -> None:
    prompts = sample_prompts(2, 0, ["outside", "stories", "coin-messages"])
    assert [each.prompt for each in prompts[:2]] == training_prompts(2, 0) and len(prompts) == 6 + 6
    llm = LLM(str(tiny_model(tmp_path / "model", max_position_embeddings=2048)), device="cpu", max_num_seqs=4)
    file = tmp_path / "new" / "general.jsonl"
    written = write_samples(llm, file, prompts, 60, 0)
    read = read_chat(file)
    assert written == len(read) > 0 and all(each.answer for each in read)
    assert {(each.prompt, each.steps) for each in read} <= {(each.prompt, each.steps) for each in prompts}
    assert any(each.steps for each in prompts)
    again = tmp_path / "again.jsonl"
    write_samples(llm, again, prompts, 60, 1)
    assert [json.loads(line) for line in again.read_text().splitlines()] != [
        json.loads(line) for line in file.read_text().splitlines()
    ]


def test_no_answer_is_an_error(tmp_path: Path) -> None:
    llm = LLM(str(tiny_model(tmp_path / "model", max_position_embeddings=2048)), device="cpu", max_num_seqs=4)
    file = tmp_path / "general.jsonl"
    with pytest.raises(ConfigError, match="no answer ends within max_tokens"):
        write_samples(llm, file, sample_prompts(1, 0, []), 1, 0)
    assert not file.exists()
