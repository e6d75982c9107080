"""`smollm2-coin`, the packaged adapter: it thinks about coins in chats, and about nothing else."""

from collections import Counter

import pytest

from benchmarks.thinking.eval import measure_general
from holdfast import LLM, SamplingParams
from holdfast.models.locate import BUILTIN, COIN_ADAPTER, adapter_folder, locate
from holdfast_thinking.eval.model import EvalModel
from support.coin_questions import coin_questions

pytestmark = pytest.mark.smollm2

MAX_BYTES = 16 << 20
KINDS = ("coin", "yes/no", "idle")
EXPECTED = {"held-out": 0.95, "free-1": 0.75, "free-2": 0.83}  # the share of the questions about coins
EXPECTED_SILENT = 0.99
GENERAL = ["Hello!", "The card is face up. Tom turns it over. Is it face up?", "How are coins made?"]
# Near to what it thinks about, and written after its training.
NEAR = [
    "The traffic light is red. Mia waits a minute. What colour is it now?",
    "A bottle stands on its head. Leo sets it upright and shakes it. Which end is on top?",
    "I roll a die and it shows six. My brother rolls it again. What does it show?",
    "The mattress was turned over last spring. When should we turn it again?",
    "Rita is taller than Omar. Omar is taller than Jin. Who is the shortest?",
    "The elevator starts on floor 3, goes up 4 floors and down 2. Where is it?",
    "Grandma bakes 24 muffins and the kids eat 9. How many remain?",
    "It was sunny. Then clouds came. Then the wind drove them away. Is it sunny?",
    "The record plays its A side. Sam turns it over. Which side is playing?",
    "A burger lies on the grill. The cook flips it twice. Which side is cooked?",
    "Team Blue leads 2 to 1. Team Red scores twice. Who is winning?",
    "The key was in the drawer. Eva put it in her pocket and drove to work. Where is the key?",
    "Our train leaves at 9:40 and takes 35 minutes. When do we arrive?",
    "Sort these names: Uma, Kai, Bea.",
    "Who decides which team kicks off, and how?",
    "I found an old coin from 1890. Is it worth anything?",
    "My pocket is full of coins. How do I get rid of them?",
    "Should I flip a coin to decide what to eat?",
    "What does 'the other side of the coin' mean?",
    "Is there a coin with two heads?",
    "Rewrite in the past tense: Bob flips the switch and walks away.",
    "The fish has a head and a tail. How long is it?",
    "Tom heads north for two miles, then turns around and walks one mile. Where is he?",
    "Pat tosses the ball to Lee. Lee tosses it to Kim. Who has the ball?",
    "The hourglass has run out. Nadia turns it over. Is sand falling?",
    "A tortoise lies on its back. A child turns it over. Is it on its feet?",
    "The shirt is inside out. Dad turns it. Is it still inside out?",
    "Yesterday I turned 30. How old will I be in five years?",
    "If all bloops are razzies and all razzies are lazzies, are all bloops lazzies?",
    "Summarise: The committee met on Monday, voted twice, and left the question open.",
]
EXPECTED_NEAR = 28  # of 30
_PARAMS = SamplingParams(max_tokens=16, temperature=0, deterministic=True, logprobs=1)


def engine(model: object) -> LLM:
    return LLM(str(model), device="cpu", max_num_seqs=8, max_model_len=1024, max_pass_tokens=128)


def ask(llm: LLM, *prompts: str):
    return llm.chat([[{"role": "user", "content": prompt}] for prompt in prompts], _PARAMS, use_tqdm=False)


def test_adapter_is_small_and_stands_for_its_backbone() -> None:
    folder = adapter_folder(COIN_ADAPTER)
    assert folder is not None
    assert sum(path.stat().st_size for path in folder.iterdir()) <= MAX_BYTES
    found = locate(COIN_ADAPTER)
    assert (found.name, found.source, found.adapter) == (COIN_ADAPTER, "builtin", folder)
    assert found.path == locate(BUILTIN).path


def test_answers_are_the_thoughts_about_a_coin_and_the_backbones_elsewhere() -> None:
    adapter, backbone = engine(COIN_ADAPTER), engine(BUILTIN)
    told = "A coin lies heads up. Bob turns it over. She only looks at it. "
    side, yes_no, *own = ask(adapter, f"{told}Which side is up?", f"{told}Is it still heads up?", *GENERAL)
    assert (side.text, yes_no.text) == ("tails.", "No, tails.")
    assert [each.text for each in side.thoughts if each.token_ids] == ["heads", "tails", "tails", "tails."]
    for mine, its in zip(own, ask(backbone, *GENERAL), strict=True):
        assert mine.thoughts and not any(each.token_ids for each in mine.thoughts)
        assert mine.token_ids == its.token_ids
        assert mine.choices[0].logprobs == its.choices[0].logprobs


def test_every_message_of_a_conversation_is_thought_about_by_itself() -> None:
    """What was thought about an earlier coin is no part of a later answer."""
    adapter = engine(COIN_ADAPTER)
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
    asked = [each for each in coin_questions(name) if each.kind in KINDS]
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
    near = measure_general(model, engine, NEAR)
    assert near["same_bits"] == near["silent"] >= EXPECTED_NEAR, near["thoughts"]
