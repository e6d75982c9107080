"""bAbI stories: numbered lines, questions with an answer and the numbers of the facts that support
it.

    1 Mary moved to the bathroom.
    2 John went to the hallway.
    3 Where is Mary? \\tbathroom\\t1

Every question is an example. The prompt has the question before and after the story, so that a
supporting fact can be recognised when it is read. The thought is that fact, at its last word.
"""

from collections.abc import Iterator
from pathlib import Path

from holdfast.errors import ConfigError
from holdfast.training.tasks.text_examples import TextExample, ThoughtStep


def read_babi(path: Path) -> list[TextExample]:
    """All questions of a file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as a bAbI text: {error}") from error
    return list(_examples(path, lines))


def _examples(path: Path, lines: list[str]) -> Iterator[TextExample]:
    facts: dict[int, str] = {}
    for line_number, line in enumerate(filter(str.strip, lines), start=1):
        number, _, text = line.strip().partition(" ")
        if not number.isdecimal() or not text:
            raise ConfigError(
                f"{path}, line {line_number}: expected a number and a sentence, found {line[:60]!r}"
            )
        if int(number) == 1:
            facts = {}
        if "\t" not in text:
            facts[int(number)] = text.strip()
            continue
        question, answer, *rest = (part.strip() for part in text.split("\t"))
        support = [int(each) for each in (rest[0] if rest else "").split()]
        missing = [each for each in support if each not in facts]
        if missing:
            raise ConfigError(
                f"{path}, line {line_number}: the question names line {missing[0]}, which is no fact before it"
            )
        yield _example(question, answer, facts, support)


def _example(question: str, answer: str, facts: dict[int, str], support: list[int]) -> TextExample:
    prompt = question
    steps = []
    for number, fact in facts.items():
        prompt += f" {fact}"
        if number in support:
            word_end = len(prompt.rstrip(".!")) - 1
            steps.append(ThoughtStep(word_end, f" {fact.rstrip('.!')}"))
    return TextExample(f"{prompt} {question} A:", f" {answer}.", tuple(steps))
