"""What a template may turn into text: plain values, which have the same text in every process."""

import pytest
from jinja2.exceptions import TemplateError

from holdfast.sandbox.template_worker import compile_template, explain, render

MESSAGE = {"role": "user", "content": "Hello", "name": "n", "tool_call_id": "t", "refusal": None}


def text_of(source: str) -> str:
    variables = {"messages": [MESSAGE], "bos_token": "<s>"}
    return render(
        compile_template(source), {"date": "2024-07-26", "variables": variables, "max_chars": 1 << 16}
    )


# Each way from an object that has no text of its own to text.
WITH_ADDRESSES = [
    "{{ messages | map(attribute='role') }}",
    "{{ messages[0].items }}",
    "{{ cycler('a') }}",
    "{{ joiner }}",
    "{{ raise_exception }}",
    "{{ namespace(a=1) }}",
    "{{ [{'a': (joiner,)}] }}",
    "{% set ns = namespace(a=joiner) %}{{ ns.a }}",
    "{% macro m() %}{% endmacro %}{{ m }}",
    "{% macro m(x) %}{{ x }}{% endmacro %}{{ m(joiner) }}",
    "{% for x in [1] %}{{ loop }}{% endfor %}",
    "{% set x %}{{ joiner }}{% endset %}{{ x }}",
    "{% filter upper %}{{ joiner }}{% endfilter %}",
    "{{ 'a' ~ joiner }}",
    "{% autoescape true %}{{ 'a' ~ joiner }}{% endautoescape %}",
    "{{ '%s' % (joiner,) }}",
    "{{ '%r'.encode() % joiner }}",
    "{{ '{}'.format(joiner) }}",
    "{{ '{0.upper!r}'.format('x') }}",
    "{{ '{a}'.format_map({'a': joiner}) }}",
    "{{ ('{}' | safe).format(joiner) }}",
    "{{ ('' | safe).join([joiner, joiner]) }}",
    "{{ [joiner] | join }}",
    "{{ messages | join(',', attribute='items') }}",
    "{{ [1, 2] | join(joiner) }}",
    "{{ joiner | string | length }}",
    "{{ joiner | upper }}",
    "{{ joiner | safe }}",
    "{{ joiner | e }}",
    "{{ joiner | pprint }}",
    "{{ 'x' | replace('x', joiner) }}",
    "{{ ['x'] | map('replace', 'x', joiner) | list }}",
    "{{ '%s' | format(joiner) }}",
    "{{ {'a': joiner} | xmlattr }}",
    "{{ messages | batch(2) }}",
    "{{ raise_exception(joiner) }}",
]


@pytest.mark.parametrize("source", WITH_ADDRESSES)
def test_address_in_memory_is_refused_with_its_line(source: str) -> None:
    with pytest.raises(TemplateError) as failed:
        text_of("\n\n" + source)
    message = explain(failed.value, {})
    assert message.startswith("line 3: it would write an object of type ")
    assert "0x" not in message


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ messages | map(attribute='role') | join(', ') }}", "user"),
        ("{{ ', '.join(messages | map(attribute='role')) }}", "user"),
        ("{{ messages | join('-', 'role') }}", "user"),
        ("{{ [none, missing, true, 1.5, 'a', ('b',), {'c': 2}] }}",
         "[None, Undefined, True, 1.5, 'a', ('b',), {'c': 2}]"),
        ("{{ none }}{{ missing }}{{ range(3) }}{{ {'a': 1}.items() }}", "Nonerange(0, 3)dict_items([('a', 1)])"),
        ("{{ 'a' ~ 1 ~ none ~ ('<' | e) }}{{ bos_token ~ '' }}", "a1None&lt;<s>"),
        ("{{ '%s %d' % ('a', 3) }}{{ 7 % 3 }}{{ 5 - 3 }}", "a 312"),
        ("{{ '{} {a} {0[0]}'.format('x', a=3) }}{{ '{a:>3}'.format_map({'a': 'b'}) }}", "x 3 x  b"),
        ("{{ ('<{}>' | safe).format('<') }}", "<&lt;>"),
        ("{{ messages | groupby('role') | map('first') | list }}", "['user']"),
    ],
)  # fmt: skip
def test_plain_values_are_written(source: str, text: str) -> None:
    assert text_of(source) == text


def test_difference_of_keys_keeps_their_order() -> None:
    assert text_of("{{ (messages[0].keys() - ['role', 'content']) | list }}") == (
        "['name', 'tool_call_id', 'refusal']"
    )
    assert text_of("{{ (messages[0].items() - []) | map('first') | join(' ') }}") == (
        "role content name tool_call_id refusal"
    )
    assert text_of("{{ (['z', 'b', 'role', 'a'] - messages[0].keys()) | list }}") == "['z', 'b', 'a']"
