"""Variables, computed again from the text."""

import re

import pytest

from holdfast_thinking.settings import AnswerForm
from holdfast_thinking.tasks.variables import LARGEST, Variables
from support.task_texts import chunk_texts, decode_texts, draw_batch

CHANGE = re.compile(r" ([a-z]) = (\w+)(?: ([+-]) (\w+))?[.;]")
START = re.compile(r"(?:Let|Given|We start with|First,)((?: [a-z] = \d+[,.]){3})")


def _value(text: str, values: dict[str, int]) -> int:
    return int(text) if text.isdecimal() else values[text]


def test_answers_and_thoughts_are_right() -> None:
    batch, tokenizer = draw_batch(Variables(), 300, 1, 9, max_thought=12, carry=True)
    for row, (prompt, answer) in enumerate(decode_texts(batch, tokenizer)):
        start = START.search(prompt)
        assert start is not None, prompt
        values = {name: int(value) for name, value in re.findall(r"([a-z]) = (\d+)", start[1])}
        assert len(values) == 3 and list(values) == sorted(values)
        offsets = tokenizer.encode(prompt).offsets
        expected: dict[int, str] = {}
        settled = next(i for i, (_, stop) in enumerate(offsets) if stop >= start.end())
        expected[settled // 8] = "".join(f" {name} {value}" for name, value in values.items())
        for each in CHANGE.finditer(prompt, start.end()):
            target, left, sign, right = each.groups()
            result, operand = _value(left, values), _value(right or "0", values)
            work = f" {target} {result} {sign or '+'} {operand}"
            result += operand * (-1 if sign == "-" else 1)
            values[target] = result
            assert 0 <= result <= LARGEST
            token = next(i for i, (_, stop) in enumerate(offsets) if stop >= each.end())
            expected[token // 8] = work + "".join(f" {name} {value}" for name, value in values.items())
        asked = prompt[prompt.rindex("value of") :].split()[2].rstrip("?")
        assert answer == f" {values[asked]}."
        assert chunk_texts(batch, tokenizer, row) == expected, prompt


@pytest.mark.parametrize("form", ["thinking", "none", "cot"])
def test_only_the_thinking_form_thinks(form: AnswerForm) -> None:
    batch, _ = draw_batch(Variables(), 50, 1, 9, max_thought=12, form=form)
    assert (batch.thoughts >= 0).any() == (form == "thinking")


def test_chain_of_thought_has_the_thoughts() -> None:
    task = Variables()
    thinking, tokenizer = draw_batch(
        task, 100, 1, 9, chunk=4, max_thought=10, carry=True
    )  # a chunk holds one change
    plain = decode_texts(thinking, tokenizer)
    chains = decode_texts(*draw_batch(task, 100, 1, 9, form="cot"))
    for row, (prompt, chain) in enumerate(chains):
        said = [f"{each}." for each in chunk_texts(thinking, tokenizer, row).values()]
        assert (prompt, chain) == (plain[row][0], f"{''.join(said)} So{plain[row][1]}")
