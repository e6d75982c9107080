"""Logprobs with token texts, read as today's objects and in vLLM's form; results in vLLM's form."""

import pytest

from holdfast.core.logprobs import DecodedLogprob, Logprob, TokenTexts, with_texts
from holdfast.core.results import Choice, Delta, Result, Stats, decode_delta, decode_result
from holdfast.core.step_plan import TokenLogprob

TEXTS = TokenTexts({3: "the", 5: " fox", 9: " dog"}.__getitem__)
FOX = TokenLogprob(5, -1.5, ((3, -0.5), (5, -1.5)))
DOG = TokenLogprob(9, -2.0, ((3, -0.5),))


def result(*choices: Choice) -> Result:
    return Result((1, 2), choices, 7, "none", Stats(), prompt_logprobs=(None, FOX))


def test_decoded_logprob_equals_the_one_without_text() -> None:
    one = with_texts(FOX, TEXTS)
    assert (one.text, one.top_texts) == (" fox", ("the", " fox"))
    assert one == FOX and one == FOX and hash(one) == hash(FOX) and one != DOG and one != 5
    assert with_texts(one, TEXTS) is one
    assert isinstance(one, TokenLogprob)


def test_decoded_logprob_reads_as_a_dict() -> None:
    fox, dog = (with_texts(each, TEXTS) for each in (FOX, DOG))
    assert list(fox) == [5, 3] and len(fox) == 2 and 3 in fox and 9 not in fox
    assert fox[5] == Logprob(-1.5, 2, " fox")
    assert dict(fox) == {5: Logprob(-1.5, 2, " fox"), 3: Logprob(-0.5, 1, "the")}
    assert dog[9] == Logprob(-2.0, None, " dog"), "its rank is not known"
    assert next(iter(dog.values())).decoded_token == " dog"
    with pytest.raises(KeyError):
        fox[9]


def test_outputs_are_the_choices_in_vllms_form() -> None:
    first = Choice(" fox dog", (5, 9), "stop", (FOX, DOG), stop_reason="!")
    one = decode_result(result(first, Choice("", (), "length")), TEXTS, prompt="a", request_id="4")
    assert (one.prompt, one.request_id, one.finished) == ("a", "4", True)
    fox, other = one.outputs
    assert (fox.index, fox.text, fox.token_ids) == (0, " fox dog", [5, 9])
    assert (fox.finish_reason, fox.stop_reason, fox.finished()) == ("stop", "!", True)
    assert fox.logprobs == [
        {5: Logprob(-1.5, 2, " fox"), 3: Logprob(-0.5, 1, "the")},
        {9: Logprob(-2.0, None, " dog"), 3: Logprob(-0.5, 1, "the")},
    ]
    assert fox.cumulative_logprob == -3.5
    assert (other.index, other.logprobs, other.cumulative_logprob) == (1, None, None)
    assert one.prompt_logprobs is not None and one.prompt_logprobs[0] is None
    assert isinstance(one.prompt_logprobs[1], DecodedLogprob)
    assert one.choices == result(first, Choice("", (), "length")).choices, "today's shape is the same"


def test_result_reads_as_a_list_of_itself() -> None:
    one = result(Choice("a", (3,), "length"))
    assert [*one] == [one] and one[0] is one and one[-1] is one and len(one) == 1
    with pytest.raises(IndexError):
        one[1]


def test_delta_gains_texts_and_keeps_its_shape() -> None:
    delta = Delta(" fox", (5,), (FOX,))
    decoded = decode_delta(delta, TEXTS)
    assert decoded == delta and decoded.logprobs is not None
    assert isinstance(decoded.logprobs[0], DecodedLogprob) and decoded.logprobs[0].text == " fox"
    plain = Delta(" fox", (5,))
    assert decode_delta(plain, TEXTS) is plain
