"""What a user sees of the package: its names, their documentation, and no torch before it is needed."""

import inspect
import subprocess
import sys
from typing import Any

import pytest

import holdfast


def test_dir_shows_the_public_names() -> None:
    assert set(holdfast.__all__) <= set(dir(holdfast))
    assert not [name for name in dir(holdfast) if not name.startswith("__") and name not in holdfast.__all__]
    for name in holdfast.__all__:
        assert getattr(holdfast, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'llm'"):
        holdfast.llm  # noqa: B018


def test_listing_the_names_imports_no_torch() -> None:
    program = "import sys, holdfast; dir(holdfast); holdfast.SamplingParams(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def public_methods() -> list[tuple[str, Any]]:
    from holdfast.engine.llm.async_llm import AsyncTokenStream
    from holdfast.engine.llm.chat_tokenizer import ChatTokenizer
    from holdfast.engine.llm.token_stream import TokenStream

    kinds = [holdfast.LLM, holdfast.AsyncLLM, ChatTokenizer, TokenStream, AsyncTokenStream]
    return [
        (f"{kind.__name__}.{name}", value)
        for kind in kinds
        for name, value in vars(kind).items()
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
    ]


def test_every_public_method_is_documented_and_typed() -> None:
    methods = public_methods()
    assert len(methods) > 30
    for name, method in methods:
        documentation = inspect.getdoc(method)
        assert documentation, f"{name} has no docstring"
        if not inspect.isfunction(method):
            continue
        parameters = list(inspect.signature(method).parameters.values())[1:]
        for parameter in parameters:
            assert parameter.annotation is not inspect.Parameter.empty, f"{name}: {parameter.name}"
        assert method.__annotations__["return"] is not inspect.Parameter.empty


@pytest.mark.parametrize(
    "name", ["generate", "chat", "stream", "stream_chat", "score", "score_batch", "chat_tokens"]
)
def test_arguments_of_calls_are_explained(name: str) -> None:
    """Each argument is named in the docstring."""
    method = getattr(holdfast.LLM, name)
    documentation = inspect.getdoc(method) or ""
    for argument in list(inspect.signature(method).parameters)[1:]:
        assert argument in documentation, f"{name} does not explain {argument}"
