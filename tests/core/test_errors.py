"""The codes of errors: stable, unique, and enough to rebuild the class in another process."""

from collections import defaultdict

import pytest

from holdfast import errors
from holdfast.errors import GuaranteeLost, HoldfastError, InvalidRequest, PromptTooLong, make_error

CLASSES = [
    one
    for name, one in vars(errors).items()
    if isinstance(one, type) and issubclass(one, HoldfastError) and not name.startswith("_")
]


def test_codes_are_unique() -> None:
    by_code = defaultdict(set)
    for one in CLASSES:
        by_code[one.code].add(one.__name__)
    assert by_code.pop("invalid_value") == {"RequestError", "InvalidRequest"}
    assert all(len(names) == 1 for names in by_code.values()), by_code


@pytest.mark.parametrize("kind", [one for one in CLASSES if one is not errors.RequestError])
def test_code_and_message_rebuild_the_error(kind: type[HoldfastError]) -> None:
    error = make_error(kind.code, "what was wrong")
    assert type(error) is kind and str(error) == "what was wrong"


def test_unknown_code_is_a_plain_error() -> None:
    assert type(make_error("no_such_code", "text")) is HoldfastError


def test_codes_that_clients_know_are_stable() -> None:
    assert (InvalidRequest.code, PromptTooLong.code) == ("invalid_value", "context_length_exceeded")
    assert GuaranteeLost.code == "guarantee_lost"
