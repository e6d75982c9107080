"""A task's texts as text again: prompts, answers, and what is thought in which chunk."""

from typing import Any

import numpy as np

from holdfast_thinking.model.batch import Batch
from holdfast_thinking.model.tokenizer import EOS, build_tokenizer
from holdfast_thinking.tasks.phrases import assemble
from holdfast_thinking.tasks.task import AnswerForm, Task


def draw_batch(
    task: Task,
    count: int,
    fewest: int,
    most: int,
    *,
    chunk: int = 8,
    max_thought: int = 8,
    form: AnswerForm = "thinking",
    seed: int = 1,
) -> tuple[Batch, Any]:
    tokenizer = build_tokenizer(task.words())
    tokens = task.phrases.encoded(lambda text: list(tokenizer.encode(text).ids))
    drawn = task.draw(np.random.default_rng(seed), count, fewest, most, form)
    return assemble(drawn, tokens, chunk, max_thought, tokenizer.token_to_id(EOS)), tokenizer


def decode_texts(batch: Batch, tokenizer: Any) -> list[tuple[str, str]]:
    """(prompt, answer); an answer must end with the end."""
    texts = []
    for row in range(len(batch)):
        ids = batch.token_ids[row, : batch.num_tokens[row]].tolist()
        prompt, answer = ids[: batch.num_prompt[row]], ids[batch.num_prompt[row] :]
        assert answer[-1] == tokenizer.token_to_id(EOS)
        text = tokenizer.decode(prompt), tokenizer.decode(answer[:-1])
        assert tokenizer.encode("".join(text)).ids == ids[:-1]  # phrases are cut where words end
        texts.append(text)
    return texts


def chunk_texts(batch: Batch, tokenizer: Any, row: int) -> dict[int, str]:
    """The thoughts that are not trivial, by chunk."""
    told = {chunk: ids[ids >= 0].tolist() for chunk, ids in enumerate(batch.thoughts[row])}
    return {chunk: tokenizer.decode(ids) for chunk, ids in told.items() if ids}
