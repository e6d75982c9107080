"""Option groups: dataclass fields as options of a command."""

import inspect
from dataclasses import dataclass, fields
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from holdfast.cli.options.groups import grouped
from holdfast.cli.options.request import SamplingOptions, StructuredOptions
from holdfast.core.options import option, option_fields
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.structured_output import StructuredOutput
from holdfast.engine.config import EngineConfig
from holdfast.engine.llm.llm import LLM
from holdfast.errors import InvalidRequest


@dataclass(frozen=True)
class Weather:
    place: str = "here"
    wind: int = option(3, "In knots.", panel="Weather", short="-w")
    rain: list[str] | None = option(None, "How wet.", panel="Weather", name="wet")  # noqa: RUF009


STORM = Weather("the sea", wind=50)


def told(*arguments, without=()):
    """What a command gets of its group, and its help."""
    got = []

    def command(name: Annotated[str, typer.Argument()] = "you", weather: Weather = STORM) -> None:
        """Tell it."""
        got.append((name, weather))

    app = typer.Typer()
    app.command()(grouped(without=without)(command))
    result = CliRunner().invoke(app, list(arguments))
    return result, got


def test_group_fields_are_options_with_the_group_s_defaults():
    _, got = told()
    assert got == [("you", STORM)]
    _, got = told("me", "-w", "7", "--wet", "a", "--wet", "b")
    assert got == [("me", Weather("the sea", 7, ["a", "b"]))]


def test_field_without_option_keeps_its_value():
    result, _ = told("--place", "there")
    assert result.exit_code == 2


def test_without_leaves_an_option_out():
    result, _ = told("--wind", "7", without=("wind",))
    assert result.exit_code == 2
    _, got = told("--wet", "a", without=("wind",))
    assert got[0][1].wind == 50


def test_every_setting_of_a_request_is_an_option():
    offered = {one.name for one in fields(SamplingOptions)}
    elsewhere = {"structured", "forced_thoughts"}  # options of their own; token ids by chunk are for programs
    assert offered | elsewhere == {one.name for one in fields(SamplingParams)}


def test_llm_shows_the_fields_of_the_engine_config():
    parameters = inspect.signature(LLM).parameters
    assert {name: one.default for name, one in parameters.items()} == {
        one.name: one.default for one in fields(EngineConfig)
    }
    for one in option_fields(EngineConfig):
        assert one.option.help in LLM.__init__.__doc__


def parsed(group, *arguments):
    """A group of options as the command line reads it."""
    got = []

    def command(group=group) -> None:
        got.append(group)

    app = typer.Typer()
    app.command()(grouped()(command))
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return got[0]


def test_sampling_options_become_params():
    """Every name is tested by `test_every_setting_of_a_request_is_an_option`; here each type of value."""
    given = "--seed 4 --stop . --stop-token-id 9 --bad-word no --top-p 0.5 --logprobs 3 --echo --no-think"
    biases = ("--logit-bias", "7=-1.5", "--logit-bias", "3=2")
    assert parsed(SamplingOptions(), *given.split(), *biases).params() == SamplingParams(
        max_tokens=128,
        temperature=0.7,
        seed=4,
        stop=["."],
        stop_token_ids=[9],
        logit_bias={3: 2.0, 7: -1.5},
        bad_words=["no"],
        top_p=0.5,
        logprobs=3,
        echo=True,
        think=False,
    )


@pytest.mark.parametrize(("deterministic", "seed"), [(True, 0), (False, None), (None, None)])
def test_deterministic_answer_has_seed_0_unless_given(deterministic, seed):
    assert SamplingOptions(deterministic=deterministic).params().seed == seed
    assert SamplingOptions(deterministic=deterministic, seed=4).params().seed == 4


@pytest.mark.parametrize("text", ["", "7", "a=1", "7=b", "7=1=2"])
def test_wrong_logit_bias_is_refused(text):
    with pytest.raises(InvalidRequest, match="such as 42=-5"):
        SamplingOptions(logit_bias=[text]).params()


def test_schema_and_grammar_are_texts_or_files(tmp_path):
    for name, value, file in (
        ("json_schema", '{"type": "string"}', "a.json"),
        ("lark", 'start: "a"', "b.lark"),
    ):
        (tmp_path / file).write_text(value)
        expected = StructuredOutput(**{name: value})
        for given in (value, str(tmp_path / file)):
            assert StructuredOptions(**{name: given}).structured_output() == expected
    assert parsed(
        StructuredOptions(), "--choice", "a", "--choice", "b"
    ).structured_output() == StructuredOutput(choice=["a", "b"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"regex": "a", "choice": ["b"]}, "exactly one of json_schema, json_object, regex, choice, lark"),
        ({"json_schema": "/no/such/file"}, "the JSON schema '/no/such/file' cannot be read: No such file"),
        ({"lark": "/no/such/file"}, "the Lark grammar '/no/such/file' cannot be read: No such file"),
        ({"lark": "x" * 5000}, "cannot be read: File name too long"),
        ({"json_schema": "/"}, "cannot be read: Is a directory"),
        ({"json_schema": "/dev/zero"}, "the JSON schema '/dev/zero' is longer than 262144"),
        ({"json_schema": "/bin/sh"}, "is no valid UTF-8"),
    ],
)
def test_unusable_file_is_refused(given, said):
    with pytest.raises(InvalidRequest, match=said):
        StructuredOptions(**given).structured_output()
