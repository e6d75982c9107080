"""A carried state ends where the next message of a chat begins: the tokens are found in the chat template."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.errors import ConfigError
from holdfast.text.tokenizer import open_tokenizer
from holdfast.thinking.config import CONFIG_FILE
from holdfast_thinking.model.build import chat_frame, message_start
from holdfast_thinking.run.export import export
from holdfast_thinking.run.loop import start_run
from holdfast_thinking.settings import TrainingSettings
from support import plain_training

CPU = torch.device("cpu")
ENTITIES = f"{Path(__file__).parents[2]}/benchmarks/thinking/entities.py:Entities"
PLAIN = replace(plain_training.PLAIN, tasks=(ENTITIES,), max_events=2)
TURNS = "{% for m in messages %}{{ before[m.role] }}{{ m.content }}{{ after[m.role] }}{% endfor %}{{ before.assistant }}"
BOXES = "{% set before = {'user': 'What is in the red box? ', 'assistant': 'The red box is '} %}"
PERIODS = "{% set after = {'user': '\n', 'assistant': '.\n'} %}"
SAME = "{% set before = {'user': 'The box is ', 'assistant': 'The box is '} %}{% set after = {} %}"
SINGLE = "{% if messages|length > 1 %}{{ raise_exception('one message') }}{% endif %}"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    export(start_run(PLAIN, CPU).built, PLAIN, folder)
    return folder


def adapter_settings(plain: Path, **changes: Any) -> TrainingSettings:
    """An adapter on this model, which carries its states through chats."""
    usual = replace(PLAIN, form="thinking", backbone=str(plain), adapter=True, chunk=4, carry=True, chat=True)
    return replace(usual, **changes)


def with_template(folder: Path, template: str) -> Path:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": template}))
    return folder


def test_start_of_a_message_is_what_follows_an_answer(plain: Path) -> None:
    tokenizer = open_tokenizer(with_template(plain, BOXES + PERIODS + TURNS))
    found = message_start(tokenizer)
    assert tokenizer.decode(found) == ".\nWhat is in the red box?"


@pytest.mark.parametrize(
    "template", [SAME + TURNS, SINGLE + BOXES + PERIODS + TURNS, "{{ messages[-1].content }}"]
)
def test_template_without_a_start_of_its_own_has_none(plain: Path, template: str) -> None:
    """A state would end before the answer it was made for."""
    assert message_start(open_tokenizer(with_template(plain, template))) == ()


@pytest.mark.parametrize(("carry", "chat"), [(True, True), (False, True), (True, False)])
def test_chat_models_that_carry_their_states_reset_them(
    plain: Path, tmp_path: Path, carry: bool, chat: bool
) -> None:
    with_template(plain, BOXES + PERIODS + TURNS)
    settings = adapter_settings(plain, carry=carry, chat=chat, steps=2)
    run = start_run(settings, CPU)
    export(run.built, settings, tmp_path)
    written = json.loads((tmp_path / CONFIG_FILE).read_text())
    assert bool(written.get("reset_ids")) == (carry and chat)
    if carry and chat:
        further = start_run(replace(settings, backbone=str(tmp_path)), CPU)
        assert further.model.thinking == run.model.thinking


def test_share_of_the_messages_follows_another_one(plain: Path) -> None:
    with_template(plain, BOXES + PERIODS + TURNS)
    settings = adapter_settings(plain, batch=64)
    run = start_run(replace(settings, follow_ups=0.5), CPU)
    source, thinking = run.source, run.model.thinking
    assert thinking is not None and thinking.reset_ids == message_start(open_tokenizer(plain))
    batch, again, other = source.batch(3), source.batch(3), source.batch(4)
    assert (batch.token_ids == again.token_ids).all() and batch.token_ids.shape != other.token_ids.shape
    resets = batch.is_reset(thinking).sum(axis=1)
    assert batch.num_given is not None
    is_continued = batch.num_given > 0
    assert 24 < is_continued.sum() < 52 and (resets[is_continued] == 0).all()
    assert 8 < (resets == 1).sum() < 32 and (resets <= 1).all()
    with pytest.raises(ConfigError, match="follow_ups"):
        replace(settings, follow_ups=0.5, chat=False)
    with_template(plain, SAME + TURNS)
    assert start_run(replace(settings, follow_ups=0.5), CPU).source.batch(0)
    with_template(plain, SINGLE + BOXES + PERIODS + TURNS)
    with pytest.raises(ConfigError, match="follow_ups"):
        start_run(replace(settings, follow_ups=0.5), CPU)


def test_template_that_changes_a_message_is_refused(plain: Path) -> None:
    with_template(plain, "{{ messages[0].content }} {{ messages[0].content }}")
    with pytest.raises(ConfigError, match="does not write a message as it is"):
        chat_frame(open_tokenizer(plain), "this")


def test_training_texts_have_their_states_after_the_start_of_the_message(plain: Path) -> None:
    """One message begins no second one: the state that a text starts with is not ended by its own start."""
    template = (
        "{% set before = {'user': '. The box is ', 'assistant': 'The key is '} %}{% set after = {} %}" + TURNS
    )
    with_template(plain, template)
    run = start_run(adapter_settings(plain, batch=32), CPU)
    assert run.model.thinking is not None
    batch = run.source.batch(0)
    resets = batch.is_reset(run.model.thinking)
    assert (resets.sum(axis=1) == 1).all()
    given = batch.num_given > 0
    assert 4 < given.sum() < 28
    first_thought = (batch.thoughts[:, :, 0] >= 0).argmax(axis=1)
    assert (first_thought[given] >= resets[given].argmax(axis=1)).all()
    assert (first_thought[given] == batch.num_given[given] - 1).all()
