"""`smollm2-coin`, the packaged adapter: it thinks about coins in chats, and about nothing else."""

from collections import Counter

import pytest

from benchmarks.thinking.eval import measure_general
from holdfast import LLM, SamplingParams
from holdfast.models.locate import BUILTIN, COIN_ADAPTER, adapter_folder, locate
from holdfast_thinking.eval.model import EvalModel
from support.coin_questions import coin_questions, near_prompts

pytestmark = pytest.mark.smollm2

MAX_BYTES = 16 << 20
OTHER = ("variables", "outside")
EXPECTED = {
    "held-out": 0.95,
    "free-1": 0.75,
    "free-2": 0.83,
    "free-3": 0.46,
}  # the share of the questions about coins
EXPECTED_SILENT = 0.99
GENERAL = ["Hello!", "The card is face up. Tom turns it over. Is it face up?", "How are coins made?"]
EXPECTED_NEAR = 28  # of 30
_PARAMS = SamplingParams(max_tokens=16, temperature=0, deterministic=True, logprobs=1)


def engine(model: object) -> LLM:
    return LLM(str(model), device="cpu", max_num_seqs=8, max_model_len=1024, max_pass_tokens=128)


def ask(llm: LLM, *prompts: str):
    return llm.chat([[{"role": "user", "content": prompt}] for prompt in prompts], _PARAMS, use_tqdm=False)


@pytest.fixture(scope="module")
def adapter() -> LLM:
    return engine(COIN_ADAPTER)


def test_adapter_is_small_and_stands_for_its_backbone() -> None:
    folder = adapter_folder(COIN_ADAPTER)
    assert folder is not None
    assert sum(path.stat().st_size for path in folder.iterdir()) <= MAX_BYTES
    found = locate(COIN_ADAPTER)
    assert (found.name, found.source, found.adapter) == (COIN_ADAPTER, "builtin", folder)
    assert found.path == locate(BUILTIN).path


def test_answers_are_the_thoughts_about_a_coin_and_the_backbones_elsewhere(adapter: LLM) -> None:
    backbone = engine(BUILTIN)
    told = "A coin lies heads up. Bob turns it over. She only looks at it. "
    side, yes_no, *own = ask(adapter, f"{told}Which side is up?", f"{told}Is it still heads up?", *GENERAL)
    assert (side.text, yes_no.text) == ("tails.", "No, tails.")
    assert [each.text for each in side.thoughts if each.token_ids] == ["heads", "tails", "tails", "tails."]
    for mine, its in zip(own, ask(backbone, *GENERAL), strict=True):
        assert mine.thoughts and not any(each.token_ids for each in mine.thoughts)
        assert mine.token_ids == its.token_ids
        assert mine.choices[0].logprobs == its.choices[0].logprobs


def test_every_message_of_a_conversation_is_thought_about_by_itself(adapter: LLM) -> None:
    """What was thought about an earlier coin is no part of a later answer."""
    told = "A quarter shows tails. My sister flips it. "
    asked = (
        f"{told}Is it heads?",
        "What is the capital of France?",
        "Thanks!",
        f"{told}Tom flips it. Which side is up?",
    )
    conversation, answers, thoughts = list[dict[str, str]](), [], []
    for message in asked:
        conversation.append({"role": "user", "content": message})
        (found,) = adapter.chat([conversation], _PARAMS, use_tqdm=False)
        conversation.append({"role": "assistant", "content": found.text})
        answers.append(found.text)
        thoughts.append([each.text for each in found.thoughts if each.token_ids])
    assert (answers[0], answers[3]) == ("Yes, heads.", "tails.")
    assert not {"heads.", "tails."} & {*answers[1].split(), *answers[2].split()}
    assert thoughts[0] == thoughts[1] == thoughts[2] == ["tails", "heads", "Yes, heads."]
    assert thoughts[3] == [*thoughts[0], "tails", "heads", "tails", "tails."]
    repeated = [
        {"role": "user", "content": asked[0]},
        {"role": "assistant", "content": answers[0]},
        *conversation[2:7],
    ]
    (again,) = engine(COIN_ADAPTER).chat([repeated], _PARAMS, use_tqdm=False)
    assert (again.text, again.choices[0].logprobs) == (found.text, found.choices[0].logprobs)


@pytest.mark.long
@pytest.mark.parametrize(("name", "expected"), EXPECTED.items())
def test_coin_questions_in_chats_are_answered(name: str, expected: float) -> None:
    asked = [each for each in coin_questions(name) if each.kind not in OTHER]
    results = ask(engine(COIN_ADAPTER), *(each.prompt.removesuffix(" A:") for each in asked))
    right = [each.is_right(f" {result.text}") for each, result in zip(asked, results, strict=True)]
    shares = Counter(each.kind for each, is_right in zip(asked, right, strict=True) if is_right)
    assert sum(right) / len(right) >= expected, shares


@pytest.mark.long
def test_nothing_is_thought_about_general_prompts() -> None:
    folder = adapter_folder(COIN_ADAPTER)
    assert folder is not None
    model = EvalModel(COIN_ADAPTER, folder, engine, ("coin-talk",), 1, True)
    found = measure_general(model, engine)
    assert found["count"] == 200 and found["same_bits"] == found["silent"]
    assert found["silent"] / found["count"] >= EXPECTED_SILENT, found["thoughts"]
    near = measure_general(model, engine, near_prompts())
    assert near["same_bits"] == near["silent"] >= EXPECTED_NEAR, near["thoughts"]
