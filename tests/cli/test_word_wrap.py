"""Streamed text is wrapped between words, however it is cut into pieces."""

import pytest

from holdfast.cli.answer_writer import WordWrap


def wrap(text, width, size=None):
    """The text written in pieces of a size."""
    written = []
    wrapper = WordWrap(written.append, lambda: width)
    for at in range(0, len(text), size or len(text) or 1):
        wrapper.write(text[at : at + (size or len(text))])
    wrapper.flush()
    return "".join(written)


@pytest.mark.parametrize("size", [None, 1, 3])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the lazy dog sleeps", "the lazy\ndog sleeps"),
        ("one\n\ntwo  three", "one\n\ntwo  three"),
        ("incomprehensibilities of it", "incomprehensibilities\nof it"),
        ("a incomprehensibilities", "a\nincomprehensibilities"),
        ("  indented words wrap", "  indented\nwords wrap"),
        ("    code is not wrapped here", "    code is not wrapped here"),
        (
            "```\ncode is not wrapped\n```\nbut this text is",
            "```\ncode is not wrapped\n```\nbut this\ntext is",
        ),
        ("ends with space ", "ends with\nspace "),
        ("", ""),
    ],
)
def test_lines_are_broken_between_words(text, expected, size):
    assert wrap(text, 10, size) == expected


def test_wide_characters_take_two_columns_and_may_be_separated():
    assert wrap("你好世界你好", 8) == "你好世界\n你好"


def test_unwrapped_text_is_unchanged():
    text = "Tabs\tand  spaces,\r\n lines\n\n  and é, 你, 🙂.\n"
    assert wrap(text, 1000, 1) == text


def test_a_word_is_held_back_until_it_is_complete():
    written = []
    wrapper = WordWrap(written.append, lambda: 10)
    wrapper.write("the la")
    assert "".join(written) == "the"
    wrapper.write("zy ")
    assert "".join(written) == "the lazy"


def test_cells_written_by_others_count():
    written = []
    wrapper = WordWrap(written.append, lambda: 10)
    wrapper.write("the ")
    wrapper.flush()
    wrapper.advance(5)
    wrapper.write("dog ")
    assert "".join(written) == "the \ndog"
