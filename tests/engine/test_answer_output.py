"""The text of one choice: stop strings across tokens, what is shown when."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.core.events import RequestEnded
from holdfast.core.request import Prepared, Request
from holdfast.core.results import Delta, Result, Stats
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import Sampled, TokenLogprob
from holdfast.core.stop_rules import FinishReason
from holdfast.engine.answer_output import AnswerOutput
from holdfast.text.detokenizer import Detokenizer
from holdfast.text.tokenizer import Tokenizer, open_tokenizer
from support.tiny import EOS, write_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return open_tokenizer(folder)


def make(tokenizer: Tokenizer, **params: object) -> AnswerOutput:
    request = Request(1, (5,), SamplingParams(**params), 0)  # type: ignore[arg-type]
    return AnswerOutput(Prepared(request, frozenset({EOS})), 0, Detokenizer(tokenizer, request.prompt_ids))


def feed(answer: AnswerOutput, token_ids: list[int], sizes: list[int]) -> tuple[list[Delta], bool]:
    """Commit tokens in groups of these sizes, until a stop string is complete."""
    deltas, at = [], 0
    for size in [*sizes, len(token_ids)]:
        group = []
        for token_id in token_ids[at : at + size]:
            group.append(Sampled(token_id, TokenLogprob(token_id, -0.5)))
            if answer.push(token_id):
                return [*deltas, answer.add_samples(group)], True
        at += size
        if group:
            deltas.append(answer.add_samples(group))
    return deltas, False


def end(answer: AnswerOutput, reason: FinishReason = "length") -> tuple[Delta, Result]:
    return answer.finish(RequestEnded(1, reason, "none", Stats()))


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    text=st.text("the quick é😀\n", max_size=24),
    stops=st.lists(st.text("the quick é", min_size=1, max_size=4), max_size=3),
    sizes=st.lists(st.integers(1, 4), max_size=8),
)
def test_deltas_join_to_the_result_for_any_grouping(
    tokenizer: Tokenizer, text: str, stops: list[str], sizes: list[int]
) -> None:
    answer = make(tokenizer, stop=stops, max_tokens=1000)
    deltas, stopped = feed(answer, tokenizer.encode(text), sizes)
    last, result = end(answer, "stop" if stopped else "length")
    shown = "".join(delta.text for delta in [*deltas, last])
    places = [text.index(stop) for stop in stops if stop in text]
    assert stopped == bool(places)
    assert shown == result.text
    assert text.startswith(result.text)
    if not places:
        assert result.text == text
    else:
        assert not any(stop in result.text for stop in stops)
    assert result.token_ids == tuple(token_id for delta in deltas for token_id in delta.token_ids)


def test_stop_string_across_tokens_is_held_back_and_never_shown(tokenizer: Tokenizer) -> None:
    answer = make(tokenizer, stop="xyz", max_tokens=99)
    token_ids = [tokenizer.encode(letter)[0] for letter in "axybxyzq"]
    deltas, stopped = feed(answer, token_ids, [1] * 8)
    assert stopped
    assert [delta.text for delta in deltas] == ["a", "", "", "xyb", "", "", ""]
    _, result = end(answer, "stop")
    assert result.text == "axyb"
    assert len(result.token_ids) == 7


def test_incomplete_character_is_replaced_only_at_the_end(tokenizer: Tokenizer) -> None:
    answer = make(tokenizer, max_tokens=99)
    first = tokenizer.encode("é", add_special_tokens=False)[0]
    deltas, _ = feed(answer, [first], [1])
    assert deltas[0].text == ""
    last, result = end(answer)
    assert last.text == result.text == "�"


def test_stop_token_and_ignored_eos_have_no_text(tokenizer: Tokenizer) -> None:
    for ignore in (False, True):
        answer = make(tokenizer, ignore_eos=ignore, stop_token_ids=[70])
        assert not answer.push(EOS)
        assert not answer.push(70)
        answer.add_samples([Sampled(EOS), Sampled(70)])
        _, result = end(answer, "stop")
        assert (result.text, result.token_ids) == ("", (EOS, 70))


def test_stop_reason_names_the_stop_string_or_the_stop_token(tokenizer: Tokenizer) -> None:
    letters = {letter: tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "ab#"}

    def reason(token_id: int, ended: FinishReason = "stop", **params: object) -> str | int | None:
        answer = make(tokenizer, max_tokens=9, **params)
        answer.push(token_id)
        answer.add_samples([Sampled(token_id)])
        delta, choice = end(answer, ended)
        assert delta.stop_reason == choice.stop_reason
        return choice.stop_reason

    assert reason(letters["#"], stop=["b", "#", "#x"]) == "#"
    assert reason(letters["a"], stop_token_ids=[letters["a"]]) == letters["a"]
    assert reason(EOS, stop_token_ids=[EOS]) is None  # the end-of-text token first
    assert reason(EOS, stop_token_ids=[EOS], ignore_eos=True) == EOS
    assert reason(EOS) is None
    assert reason(letters["a"], "length", stop_token_ids=[letters["b"]]) is None


@pytest.mark.parametrize("sizes", [[1] * 9, [9], [2, 3]])
def test_stop_string_is_kept_if_requested(tokenizer: Tokenizer, sizes: list[int]) -> None:
    answer = make(tokenizer, stop=["q", "xyz"], include_stop_str_in_output=True, max_tokens=99)
    deltas, stopped = feed(answer, [tokenizer.encode(letter)[0] for letter in "axybxyzq"], sizes)
    last, choice = end(answer, "stop")
    assert stopped
    assert "".join(delta.text for delta in [*deltas, last]) == choice.text == "axybxyz"
    assert choice.stop_reason == "xyz"


def test_stop_token_is_kept_if_requested(tokenizer: Tokenizer) -> None:
    token_id = tokenizer.encode("a", add_special_tokens=False)[0]
    for stop_id, text in ((token_id, "a"), (EOS, "")):  # a special token has no text
        answer = make(tokenizer, stop_token_ids=[token_id], include_stop_str_in_output=True)
        answer.push(stop_id)
        answer.add_samples([Sampled(stop_id)])
        assert end(answer, "stop")[1].text == text


def test_logprobs_only_if_requested(tokenizer: Tokenizer) -> None:
    asked, plain = make(tokenizer, logprobs=0), make(tokenizer)
    sampled = [Sampled(9, TokenLogprob(9, -0.25))]
    assert asked.add_samples(sampled).logprobs == (TokenLogprob(9, -0.25),)
    assert plain.add_samples([Sampled(9)]).logprobs is None
    assert end(asked)[1].logprobs == (TokenLogprob(9, -0.25),)
    assert end(plain)[1].logprobs is None


def test_stop_string_before_min_tokens_is_text(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("ab#ab#ab", add_special_tokens=False)
    first = next(n for n in range(1, len(token_ids)) if "#" in tokenizer.decode(token_ids[:n]))
    answer = make(tokenizer, stop="#", min_tokens=first + 1, max_tokens=50)
    deltas, stopped = feed(answer, token_ids, [1] * len(token_ids))
    _, result = end(answer, "stop")
    assert stopped
    assert result.text == "ab#ab"
    assert "".join(delta.text for delta in deltas) == "ab#ab"


@pytest.mark.parametrize("stops", [(), ("zz",)])
def test_detokenization_is_deferred_without_stop_strings(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, stops: tuple[str, ...]
) -> None:
    answer = make(tokenizer, stop=stops)
    read: list[int] = []
    push, extend = Detokenizer.push, Detokenizer.extend
    monkeypatch.setattr(Detokenizer, "push", lambda self, id_: read.append(id_) or push(self, id_))
    monkeypatch.setattr(Detokenizer, "extend", lambda self, some: read.extend(some) or extend(self, some))
    ids = list(tokenizer.encode("one two"))
    for token_id in ids:
        assert not answer.push(token_id)
    assert read == (ids if stops else [])
    delta = answer.add_samples([Sampled(token_id) for token_id in ids])
    assert read == ids and delta.text == "one two"
    assert not answer.push(ids[0])
    _, choice = end(answer)
    assert read == [*ids, ids[0]] and choice.text == tokenizer.decode([*ids, ids[0]])
