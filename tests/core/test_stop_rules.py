"""When an answer ends, and what may be shown before it does."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.sampling_params import SamplingParams
from holdfast.core.stop_rules import find_stop, finish_reason, held_back_len, is_stop_token, looks_final
from holdfast.core.structured_output import StructuredOutput

EOS = frozenset({0, 9})
TEXT = st.text("ab", max_size=12)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)


def test_stop_tokens() -> None:
    params = SamplingParams(stop_token_ids=[5])
    assert [is_stop_token(token_id, params, EOS) for token_id in (0, 9, 5, 4)] == [True, True, True, False]
    ignoring = SamplingParams(stop_token_ids=[5], ignore_eos=True)
    assert [is_stop_token(token_id, ignoring, EOS) for token_id in (0, 9, 5)] == [False, False, True]


def test_finish_reasons() -> None:
    params = SamplingParams(max_tokens=4, min_tokens=2)
    assert finish_reason(0, 1, False, params, EOS) is None  # too short to stop
    assert finish_reason(3, 1, True, params, EOS) is None
    assert finish_reason(0, 2, False, params, EOS) == "stop"
    assert finish_reason(3, 2, True, params, EOS) == "stop"
    assert finish_reason(3, 3, False, params, EOS) is None
    assert finish_reason(3, 4, False, params, EOS) == "length"
    assert finish_reason(0, 4, False, params, EOS) == "stop"  # a stop on the last token is a stop
    assert finish_reason(0, 4, False, SamplingParams(max_tokens=4, ignore_eos=True), EOS) == "length"


def test_complete_structured_output_ends_before_min_tokens() -> None:
    params = SamplingParams(max_tokens=4, min_tokens=3, structured=StructuredOutput(choice=["a"]))
    assert finish_reason(0, 2, False, params, EOS) == "stop"
    assert finish_reason(3, 2, True, params, EOS) is None  # a stop string still waits


def test_looks_final_for_stop_tokens_and_the_last_token() -> None:
    params = SamplingParams(max_tokens=5)
    assert looks_final(0, 1, params, EOS)
    assert not looks_final(3, 3, params, EOS)
    assert looks_final(3, 4, params, EOS)  # the bonus token after it is the fifth


def naive_find(text: str, stops: list[str]) -> int | None:
    places = [at for stop in stops for at in range(len(text)) if text.startswith(stop, at)]
    return min(places, default=None)


@given(TEXT, TEXT, STOPS)
def test_find_stop_equals_a_plain_search(before: str, piece: str, stops: list[str]) -> None:
    if naive_find(before, stops) is None:
        text = before + piece
        found = find_stop(text, len(before), stops)
        assert (None if found is None else found[0]) == naive_find(text, stops)
        if found is not None:
            assert found[1] == next(stop for stop in stops if text.startswith(stop, found[0]))


@given(TEXT, STOPS)
def test_held_back_len_is_the_longest_prefix_of_a_stop(text: str, stops: list[str]) -> None:
    beginnings = {stop[:n] for stop in stops for n in range(1, len(stop))}
    expected = max((n for n in range(len(text) + 1) if text[len(text) - n :] in beginnings), default=0)
    assert held_back_len(text, stops) == expected


@given(st.lists(st.text("ab", max_size=3), max_size=8), STOPS)
def test_shown_text_never_contains_part_of_a_stop(pieces: list[str], stops: list[str]) -> None:
    text = shown = ""
    for piece in pieces:
        searched, text = len(text), text + piece
        found = find_stop(text, searched, stops)
        if found is not None:
            at, _ = found
            assert text[:at].startswith(shown)
            assert naive_find(text[:at], stops) is None
            return
        visible = text[: len(text) - held_back_len(text, stops)]
        assert visible.startswith(shown)
        shown = visible
