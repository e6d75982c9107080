"""What a model's template and tokenizer say about its answers: formats, where answers begin, grammars
after thinking, and the parsers of whole answers.
"""

import json
import random
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.request import Prepared, Request
from holdfast.core.results import Delta
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import Sampled
from holdfast.core.structured_output import StructuredOutput
from holdfast.engine.answer_output import AnswerOutput
from holdfast.errors import ConfigError, InvalidRequest
from holdfast.server.reasoning.chat_format import AnswerStart, ChatFormat, choose_chat_format
from holdfast.server.reasoning.formats import HARMONY, QWEN3
from holdfast.server.reasoning.tags import TagState
from holdfast.server.tools.deltas import ParsedMessage, merge_deltas
from holdfast.server.tools.plan import plan_tools
from holdfast.server.tools.tool_config import parse_tools
from holdfast.text.detokenizer import Detokenizer
from holdfast.text.tokenizer import Tokenizer, byte_tokenizer
from support.chat_models import chat_tokenizer
from support.grammar_walks import GrammarHarness, needs_llguidance

VOCAB_SIZE = 320
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("weather", "time")
]
ROME = '{"city": "Rome"}'
PROMPTS = {"qwen3": "<|im_start|>assistant\n", "gpt-oss": "<|start|>assistant"}
ANALYSIS = "<|channel|>analysis<|message|>Hm.\n<|end|><|start|>assistant"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizers")


@pytest.fixture(scope="module")
def formats(folder: Path) -> Any:
    return cache(lambda name: choose_chat_format(chat_tokenizer(folder / name, name)))


def encode(chat_format: ChatFormat, text: str) -> list[int]:
    return chat_format.tokenizer.encode(text, add_special_tokens=False)


def start_after(chat_format: ChatFormat, prompt: str, continued: str | None = None) -> AnswerStart:
    return chat_format.start_of_answer(encode(chat_format, prompt), continued)


def test_format_is_chosen_by_the_template(formats: Any) -> None:
    assert formats("qwen3").reasoning == QWEN3 and formats("qwen3").tool_format.name == "hermes"
    assert formats("gpt-oss").reasoning == HARMONY and formats("gpt-oss").tool_format.name == "openai"
    assert formats("gemma").reasoning is None
    assert choose_chat_format(byte_tokenizer()).reasoning is None


def test_parsers_can_be_chosen_by_name(formats: Any) -> None:
    qwen3, gpt_oss = formats("qwen3").tokenizer, formats("gpt-oss").tokenizer
    assert choose_chat_format(qwen3, "none").reasoning is None
    assert choose_chat_format(qwen3, "auto", "none").parses_calls is False
    assert choose_chat_format(qwen3, "auto", "mistral").tool_format.name == "mistral"
    assert choose_chat_format(qwen3, "auto", "llama3_json").tool_format.name == "llama3_json"
    assert choose_chat_format(gpt_oss, "auto", "openai").reasoning == HARMONY
    assert choose_chat_format(gpt_oss, "none").reasoning is None
    assert choose_chat_format(byte_tokenizer(), "deepseek_r1").has_reasoning


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("qwen3", ("openai_gptoss", "auto"), r"needs the special token <\|start\|>"),
        ("qwen3", ("auto", "openai"), r"needs the special token <\|start\|>"),
        ("qwen3", ("qwen3", "openai"), "belong together"),
        ("gpt-oss", ("auto", "hermes"), "belong together"),
        ("gpt-oss", ("none", "openai"), "belong together"),
    ],
)
def test_parsers_that_do_not_fit_are_refused(formats: Any, name: str, options: Any, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        choose_chat_format(formats(name).tokenizer, *options)


@pytest.mark.parametrize(
    ("prompt", "continued", "state"),
    [
        ("<|im_start|>assistant\n", None, TagState.MAY_THINK),
        ("<|im_start|>assistant\n<think>\n", None, TagState.THINKING),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", None, TagState.CLOSED),
        ("<|im_start|>assistant\nSo far", "So far", TagState.ANSWERING),
        ("<|im_start|>assistant\n<think>So far", "<think>So far", TagState.THINKING),
        ("<|im_start|>assistant\n<think>a</think>b", "<think>a</think>b", TagState.ANSWERING),
    ],
)
def test_prompt_says_where_the_answer_begins(
    formats: Any, prompt: str, continued: str | None, state: TagState
) -> None:
    assert start_after(formats("qwen3"), prompt, continued).state is state
    assert start_after(formats("qwen3-special"), prompt, continued).state is state


def test_typed_tag_at_the_end_of_a_prompt_is_text(formats: Any) -> None:
    tokenizer: Tokenizer = formats("qwen3").tokenizer
    text = "a <think>"
    ids = tokenizer.encode(text, add_special_tokens=False, content=((0, len(text)),))
    assert formats("qwen3").start_of_answer(ids, None).state is TagState.MAY_THINK


def test_deepseek_r1_begins_inside_the_thinking() -> None:
    chat_format = choose_chat_format(byte_tokenizer(), "deepseek_r1")
    assert start_after(chat_format, "Hello").state is TagState.THINKING
    assert start_after(chat_format, "<think>\n\n</think>\n").state is TagState.CLOSED


# Parsers: the ids of an answer through the engine's own output.


def parse(
    chat_format: ChatFormat, ids: Sequence[int], sizes: Sequence[int], prompt: str, **given: Any
) -> tuple[ParsedMessage, int]:
    plan = plan_tools(parse_tools(TOOLS, given.pop("choice", "auto")), chat_format.tool_format, None)
    prompt_ids = encode(chat_format, prompt)
    skips = not chat_format.controls(plan)
    params = SamplingParams(max_tokens=1000, skip_special_tokens=skips, **given)
    eos_ids = chat_format.tokenizer.eos_token_ids
    request = Request(0, tuple(prompt_ids), params, seed=0)
    output = AnswerOutput(
        Prepared(request, eos_ids),
        0,
        Detokenizer(chat_format.tokenizer, prompt_ids, skip_special_tokens=skips),
    )
    start = chat_format.start_of_answer(prompt_ids, None)
    parser = chat_format.parser(plan, start, b"", 0, prompt_ids=prompt_ids, skip_special_tokens=True)
    deltas, at, number = [], 0, 0
    ended = False
    while at < len(ids) and not ended:
        new = ids[at : at + sizes[number % len(sizes)]]
        at, number = at + len(new), number + 1
        kept = []
        for id_ in new:
            kept.append(Sampled(id_, None))
            ended = output.push(id_)
            if ended:
                break
        deltas += parser.feed(output.add_samples(kept))
    last = output._show(len(output._text)) + output._detokenizer.flush()
    deltas += parser.feed(Delta(last, finish_reason="stop"))
    return merge_deltas([*deltas, *parser.finish()]), parser.num_reasoning_tokens


CALL = {
    "qwen3": f'<think>\nHm.\n</think>\n\nI look.\n<tool_call>\n{{"name": "time", "arguments": {ROME}}}\n</tool_call>',
    "qwen3-special": f'<think>\nHm.\n</think>\n\nI look.\n<tool_call>{{"name": "time", "arguments": {ROME}}}</tool_call>',
    "gpt-oss": "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look."
    f"<|end|><|start|>assistant<|channel|>commentary to=functions.time <|constrain|>json<|message|>{ROME}<|call|>",
}


@pytest.mark.parametrize("name", list(CALL))
def test_answer_is_parsed_alike_however_tokens_arrive(formats: Any, name: str) -> None:
    chat_format, prompt = formats(name), PROMPTS[name.removesuffix("-special")]
    ids = encode(chat_format, CALL[name])
    message, num_tokens = parse(chat_format, ids, [len(ids)], prompt)
    assert (message.reasoning, message.content) == ("Hm.", "I look.")
    assert [(call.name, call.arguments) for call in message.calls] == [("time", ROME)]
    expected = ids.index(encode(chat_format, "<|end|>" if name == "gpt-oss" else "</think>")[0]) + 1
    for sizes in ([1], [2], [3, 1], [7, 2, 1]):
        assert parse(chat_format, ids, sizes, prompt) == (message, expected) and num_tokens == expected


@pytest.mark.parametrize("stop", ["clear", "r.<", "<|channel|>final", "assis"])
def test_stop_strings_cut_the_answer(formats: Any, stop: str) -> None:
    chat_format = formats("gpt-oss")
    text = "<|channel|>analysis<|message|>It is clear.<|end|><|start|>assistant<|channel|>final<|message|>Yes"
    results = [
        parse(chat_format, encode(chat_format, text), sizes, PROMPTS["gpt-oss"], stop=[stop])[0]
        for sizes in ([1], [2], [50])
    ]
    assert results[0] == results[1] == results[2]
    cut = text.partition(stop)[0].partition("<|message|>")[2].partition("<|end|>")[0]
    assert (results[0].reasoning or "").startswith(cut.strip()) and "Yes" not in (results[0].content or "")


@settings(max_examples=60, deadline=None)
@given(data=st.data(), name=st.sampled_from(list(CALL)))
def test_random_tokens_lose_nothing_and_never_fail(formats: Any, data: Any, name: str) -> None:
    chat_format = formats(name)
    ends = chat_format.tokenizer.eos_token_ids
    tokens = st.integers(0, chat_format.tokenizer.vocab_size - 1).filter(lambda one: one not in ends)
    markup = st.sampled_from(sorted(set(chat_format.tokenizer.special_ids) - ends))
    ids = data.draw(st.lists(tokens | markup, max_size=30))
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    prompt = PROMPTS[name.removesuffix("-special")]
    assert parse(chat_format, ids, sizes, prompt) == parse(chat_format, ids, [1], prompt)


# Grammars


@pytest.fixture(scope="module")
def harnesses(formats: Any) -> Iterator[Any]:
    made: dict[str, GrammarHarness] = {}

    def make(name: str) -> GrammarHarness:
        if name not in made:
            tokenizer = formats(name).tokenizer
            made[name] = GrammarHarness(tokenizer, VOCAB_SIZE, tokenizer.eos_token_ids)
        return made[name]

    yield make
    for harness in made.values():
        harness.compiler.close()


def check_grammar(harness: GrammarHarness, output: StructuredOutput, text: str, *, accepted: bool) -> None:
    """Whether every token of a text is allowed, and then the end."""
    tokenizer, grammar = harness.tokenizer, harness.compiler.compile(output)
    for id_ in [*harness.encode(text), min(tokenizer.eos_token_ids)]:
        (mask,) = grammar.masks((), 1)
        if mask is not None and not int.from_bytes(mask, "little") >> id_ & 1:
            assert not accepted, f"{tokenizer.token_bytes(id_)!r} is not allowed"
            return
        grammar.commit(id_)
    assert accepted


def constrained(
    chat_format: ChatFormat, prompt: str, structured: StructuredOutput | None, choice: Any = "none"
) -> StructuredOutput:
    plan = plan_tools(parse_tools(TOOLS, choice), chat_format.tool_format, structured)
    output = chat_format.constrain(plan, start_after(chat_format, prompt))
    assert output is not None
    return output


JSON = StructuredOutput(json_schema=SCHEMA)
HERMES_CALL = f'<tool_call>\n{{"name": "time", "arguments": {ROME}}}\n</tool_call>'
HARMONY_CALL = f"<|channel|>commentary to=functions.time <|constrain|>json<|message|>{ROME}"
OPEN, CLOSED = "<|im_start|>assistant\n<think>\n", "<|im_start|>assistant\n<think>\n\n</think>\n\n"


@needs_llguidance
@pytest.mark.parametrize(
    ("name", "prompt", "structured", "choice", "good", "bad"),
    [
        (
            "qwen3",
            None,
            JSON,
            "none",
            [ROME, f"<think>\nHm <\n</think>\n\n{ROME}"],
            ["Hello", f"Hm</think>{ROME}"],
        ),
        ("qwen3", OPEN, JSON, "none", [f"Hm\n</think>\n\n{ROME}"], [ROME, "Hm</think>Hello"]),
        ("qwen3", CLOSED, JSON, "none", [ROME], [f"<think></think>{ROME}"]),
        (
            "qwen3",
            OPEN,
            StructuredOutput(lark='start: x\nx: "}" /[{]+/'),
            "none",
            ["a</think>}{{"],
            ["a</think>{"],
        ),
        ("qwen3", None, None, "required", [f"<think>Hm</think>{HERMES_CALL}", HERMES_CALL], ["Hello"]),
        (
            "qwen3-special",
            None,
            JSON,
            "none",
            [f"<think>Hm</think>\n{ROME}", ROME],
            ["<think>Hm" + ROME, "Hi"],
        ),
        (
            "gpt-oss",
            None,
            JSON,
            "none",
            [f"{ANALYSIS}<|channel|>final<|message|>{ROME}"],
            [ROME, f"{ANALYSIS}{ROME}"],
        ),
        (
            "gpt-oss",
            None,
            None,
            "required",
            [f"{ANALYSIS}{HARMONY_CALL}", HARMONY_CALL],
            [f"{ANALYSIS}<|channel|>final"],
        ),
        ("gpt-oss", "<|start|>assistant<|channel|>final<|message|>So: ", JSON, "none", [ROME], [ANALYSIS]),
    ],
    ids=[
        *(
            "may think",
            "open",
            "closed",
            "lark",
            "required",
            "special tags",
        ),
        *("harmony", "harmony required", "harmony continued"),
    ],
)
def test_grammar_applies_after_the_thinking(
    formats: Any,
    harnesses: Any,
    name: str,
    prompt: str | None,
    structured: StructuredOutput | None,
    choice: str,
    good: list[str],
    bad: list[str],
) -> None:
    chat_format = formats(name)
    prompt = prompt or PROMPTS[name.removesuffix("-special")]
    output = constrained(chat_format, prompt, structured, choice)
    for text in good:
        check_grammar(harnesses(name), output, text, accepted=True)
    for text in bad:
        check_grammar(harnesses(name), output, text, accepted=False)


@needs_llguidance
def test_errors_name_what_the_client_sent(formats: Any, harnesses: Any) -> None:
    chat_format = formats("qwen3")
    start = start_after(chat_format, OPEN)
    odd = StructuredOutput(json_schema={"type": "object", "properties": {"x": {"not": {}}}})
    plan = plan_tools(parse_tools(), chat_format.tool_format, odd)
    output = chat_format.constrain(plan, start)
    assert output is not None
    with pytest.raises(InvalidRequest) as error:
        harnesses("qwen3").compiler.compile(output)
    explained = chat_format.explain(plan, start, str(error.value))
    assert explained.startswith("the JSON schema cannot be used: Unimplemented keys")


@needs_llguidance
def test_random_forced_answers_are_parsed_as_calls(formats: Any, harnesses: Any) -> None:
    for name in ("qwen3", "gpt-oss"):
        chat_format, harness = formats(name), harnesses(name)
        tokenizer = chat_format.tokenizer
        output = constrained(chat_format, PROMPTS[name], None, "required")
        grammar = harness.compiler.compile(output)
        thinking = encode(chat_format, "<think>a</think>" if name == "qwen3" else ANALYSIS)
        for id_ in thinking:
            grammar.commit(id_)
        ids, rng = list(thinking), random.Random(3)
        while not ids[-1:] or ids[-1] not in tokenizer.eos_token_ids:
            (mask,) = grammar.masks((), 1)
            assert mask is not None
            ids.append(harness.choose(int.from_bytes(mask, "little"), rng))
            grammar.commit(ids[-1])
        message, _ = parse(chat_format, ids[:-1], [1], PROMPTS[name], choice="required")
        assert message.content is None and message.calls
        assert all(json.loads(call.arguments)["city"] in ("Rome", "Oslo") for call in message.calls)
