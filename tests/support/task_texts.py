"""A task's texts as text again: prompts, answers, and what is thought in which chunk."""

import random
from typing import Any

from holdfast_thinking.data.text_examples import TextRules, TextTask, make_batch
from holdfast_thinking.model.batch import Batch
from holdfast_thinking.model.tokenizer import EOS, build_tokenizer
from holdfast_thinking.settings import AnswerForm, TrainingSettings


def draw_batch(
    task: TextTask,
    count: int,
    fewest: int,
    most: int,
    *,
    chunk: int = 8,
    max_thought: int = 8,
    form: AnswerForm = "thinking",
    carry: bool = False,
    seed: int = 1,
) -> tuple[Batch, Any]:
    tokenizer, rng = build_tokenizer(task.words()), random.Random(seed)
    examples = [task.example(rng, rng.randint(fewest, most)) for _ in range(count)]
    settings = TrainingSettings(form=form, chunk=chunk, max_thought=max_thought, carry=carry)
    rules = TextRules(settings, tokenizer.token_to_id(EOS))
    return make_batch(examples, tokenizer, rules), tokenizer


def decode_texts(batch: Batch, tokenizer: Any) -> list[tuple[str, str]]:
    """(prompt, answer); an answer must end with the end."""
    texts = []
    for row in range(len(batch)):
        ids = batch.token_ids[row, : batch.num_tokens[row]].tolist()
        prompt, answer = ids[: batch.num_prompt[row]], ids[batch.num_prompt[row] :]
        assert answer[-1] == tokenizer.token_to_id(EOS)
        texts.append((tokenizer.decode(prompt), tokenizer.decode(answer[:-1])))
    return texts


def chunk_texts(batch: Batch, tokenizer: Any, row: int) -> dict[int, str]:
    """The thoughts that are not trivial, by chunk."""
    told = {chunk: ids[ids >= 0].tolist() for chunk, ids in enumerate(batch.thoughts[row])}
    return {chunk: tokenizer.decode(ids) for chunk, ids in told.items() if ids}
