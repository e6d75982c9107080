"""The text files of words: what a line stands for, and that every file can be read."""

from importlib import resources

import pytest

from holdfast_thinking.data.words import parse_words, read_words


def test_lines_are_entries_in_their_order() -> None:
    words = parse_words(
        '# a file\n[ONE]\nflip {o}|\nturn over *2\n"" *3\n\n# more\n" = "\n[TWO]\n"\\nA:"\n"go," says {N}\n'
    )
    assert words.ONE == ("flip {o}|", "turn over", "turn over", "", "", "", " = ")
    assert words.TWO == ("\nA:", '"go," says {N}')
    with pytest.raises(AttributeError, match=r"\[THREE\]"):
        _ = words.THREE


def test_every_file_has_lists_of_entries() -> None:
    names = [path.name for path in resources.files("holdfast_thinking").joinpath("words").iterdir()]
    assert len(names) > 10
    for name in names:
        lists = read_words(name.removesuffix(".txt")).lists
        assert lists and all(lists.values()), name
