"""The tool format is chosen by the chat template."""

import pytest

from holdfast.server.tools.formats import HERMES, LLAMA3, MISTRAL, ToolFormat, choose_format

QWEN = "{{ tools | tojson }} return a json object within <tool_call></tool_call> XML tags"
MISTRAL_V3 = "{{ '[AVAILABLE_TOOLS] [' }}{{ '[TOOL_CALLS] [' }}"
LLAMA31 = "{{ '<|start_header_id|>ipython<|end_header_id|>' }}"


@pytest.mark.parametrize(
    ("template", "chosen"),
    [
        (QWEN, HERMES),
        (MISTRAL_V3, MISTRAL),
        (LLAMA31, LLAMA3),
        ("{{ '<|python_tag|>' }}", LLAMA3),
        ("{% for message in messages %}{{ message.content }}{% endfor %}", HERMES),
        ("", HERMES),
        (None, HERMES),
    ],
)
def test_format_is_chosen_by_template(template: str | None, chosen: ToolFormat) -> None:
    assert choose_format(template) is chosen
    assert choose_format(template, ["<s>", "[TOOL_CALLS]", "<|python_tag|>"]) is chosen


def test_special_token_marker_is_not_forced() -> None:
    hidden = choose_format(QWEN, ["<tool_call>"])
    assert hidden.name == "hermes" and hidden.opening == "<tool_call>"
    for one in (hidden, LLAMA3, MISTRAL):
        assert one.opening not in "".join(vars(one.frame).values())
    assert HERMES.opening in HERMES.frame.opening


def test_marker_with_repeated_first_character_is_refused() -> None:
    with pytest.raises(AssertionError):
        ToolFormat("bad", "<a<b>", "", HERMES.frame)
