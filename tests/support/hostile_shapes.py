"""Hostile conversations, fields, names, forms and tools. Each group names the weakness, and where it was found."""

from collections.abc import Iterator

from support.hostile import Hostile, chat, deep, form, many, plain, said, tool


def conversations() -> Iterator[Hostile]:
    # Shapes nobody expected (llama.cpp #7133: a segmentation fault; #14051: an abort).
    yield chat("no messages", "messages", messages=[])
    yield chat("messages null", "messages", messages=None)
    yield chat("messages a text", "messages", messages="hi")
    yield chat("a message null", "messages[0]", messages=[None])
    yield chat("a message without a role", "role", messages=[{"content": "a"}])
    yield chat("a role of 5 MB", "role", messages=[{"role": "a" * 5_000_000, "content": "a"}])
    yield chat("an empty role", "role", messages=[{"role": "", "content": "a"}])
    yield said("a content null", None, "content")
    yield said("a content of a number", 7, "content")
    yield said("a content of no parts", [], "", status=200)
    yield said("a part null", [None], "content")
    yield said("a part without a text", [{"type": "text"}], "content")
    yield said("tool_calls a text", "a", "tool_calls", tool_calls="f")
    yield said("a call null", "a", "tool_calls", tool_calls=[None])
    call = {"id": "same", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    yield said("two calls of one id", "a", "", status=200, tool_calls=[call, call])
    yield said(
        "arguments deep",
        "a",
        "",
        status=400,
        tool_calls=[{"function": {"name": "f", "arguments": "[" * 100_000}}],
    )

    # Requests made, files read for a stranger (CVE-2025-6242; SGLang's file:// images; CVE-2026-5497, CVE-2026-44222).
    for url in (
        "http://169.254.169.254/latest/meta-data/",
        "file:///etc/passwd",
        "data:video/jpeg;base64," + "a," * 9999,
    ):
        yield said(f"image of {url[:20]}", [{"type": "image_url", "image_url": {"url": url}}], "parts")
    yield said("an audio", [{"type": "input_audio", "input_audio": {"data": "a", "format": "wav"}}], "parts")
    yield said("a file", [{"type": "file", "file": {"file_id": "../../etc/passwd"}}], "parts")
    yield said("an image's place in a text", "<|vision_start|><|image_pad|><|vision_end|>", status=200)

    # A stranger's programs (CVE-2025-62164: prompt_embeds; CVE-2026-7304: custom_logit_processor; CVE-2025-61620: a
    # chat_template; CVE-2025-62426: variables of a template that are more than that).
    code = "gASVDgAAAAAAAACMBXBvc2l4lC4="
    for name in (
        "prompt_embeds",
        "custom_logit_processor",
        "logits_processors",
        "lora_path",
        "grammar",
        "chat_template",
    ):
        yield plain(f"{name} in completions", f"Unknown parameter: '{name}'", **{name: code})
        yield chat(f"{name} in a chat", f"Unknown parameter: '{name}'", **{name: code})
    yield chat(
        "a template of the client's", "Unknown", chat_template="{% for i in range(10**9) %}{% endfor %}"
    )
    for name in ("messages", "tools", "documents", "add_generation_prompt", "strftime_now"):
        yield chat(f"template variable {name}", name, chat_template_kwargs={name: True})
    yield chat(
        "template variable tokenize",
        status=200,
        chat_template_kwargs={"tokenize": True, "chat_template": "{{ 7 }}"},
    )
    yield chat("template variables of 5 MB", "context", chat_template_kwargs={"x": "a" * 5_000_000})
    yield chat("template variables a list", "chat_template_kwargs", chat_template_kwargs=[])

    # Names that are paths.
    for name in (
        "../../etc/passwd",
        "/etc/passwd",
        "tiny/../../x",
        "file:///etc/passwd",
        "..\\..\\x",
        "TINY",
        "tiny ",
    ):
        yield plain(f"model {name}", "does not exist", status=404, model=name)
    yield plain("model of 5 MB", "model", model="a" * 5_000_000)
    yield plain("model a list", "model", model=["tiny"])
    yield plain("model empty", "does not exist", status=404, model="")


def forms() -> Iterator[Hostile]:
    # Schemas, expressions and grammars that ended the engine (CVE-2025-48942, CVE-2025-48943; vLLM #17313; llama.cpp #4492;
    # SGLang #7903), or keep it busy for ever.
    for name, schema in (
        ("type", {"type": "nothing"}),
        ("type of a number", {"type": 7}),
        ("properties a list", {"type": "object", "properties": []}),
        ("pattern", {"type": "string", "pattern": "("}),
        ("a pattern of a number", {"type": "string", "pattern": 7}),
        ("minimum above maximum", {"type": "integer", "minimum": 9, "maximum": 1}),
        ("a reference to nowhere", {"$ref": "#/$defs/nothing"}),
        ("a reference to a stranger", {"$ref": "http://169.254.169.254/"}),
        ("a reference to a file", {"$ref": "file:///etc/passwd"}),
        ("nothing allowed", {"not": {}}),
        ("no choice", {"enum": []}),
    ):
        yield plain(f"schema: {name}", "schema", guided_json=schema)
    yield plain("schema: a length of 10**9", status=200, guided_json={"type": "string", "minLength": 10**9})
    yield plain("schema: 10**9 items", status=200, guided_json={"type": "array", "minItems": 10**9})
    yield plain("schema: itself", "", guided_json={"$ref": "#"})
    yield plain(
        "schema: recursive", status=200, guided_json={"type": "array", "items": {"$ref": "#"}}, max_tokens=4
    )
    yield plain("schema: a text that is none", "JSON", guided_json="{")
    yield plain("schema: NaN as text", "JSON", guided_json='{"const": NaN}')
    yield plain("schema: 65 levels", "", guided_json=deep(70))
    yield plain("schema: deep text", "", guided_json='{"items":' * 60_000 + "{}" + "}" * 60_000)
    yield plain("schema: 9000 properties", "schema", guided_json=many(9000))
    yield chat(
        "schema: without a name",
        "name",
        response_format={"type": "json_schema", "json_schema": {"schema": {}}},
    )
    yield chat("schema: named by a path", "name", response_format=form({}, name="../../x"))
    yield chat("response_format: unknown", "response_format", response_format={"type": "pickle"})
    for name, expression in (
        ("open", "("),
        ("open class", "[a-"),
        ("repeats nothing", "*"),
        ("looks behind", "(?<=a)b"),
        ("refers back", r"(a)\1"),
        ("repeats too often", "a{2,1}"),
        ("a repetition of 10**10", "a{9999999999}"),
        ("300,000 letters", "a" * 300_000),
        ("100,000 brackets", "(" * 100_000 + ")" * 100_000),
        ("nothing", ""),
    ):
        yield plain(f"regex: {name}", "", guided_regex=expression)
    yield plain("regex: repetitions of repetitions", status=200, guided_regex="((a{1000}){1000}){1000}")
    yield plain("regex: slow elsewhere", status=200, guided_regex="(a+)+b", max_tokens=8)
    for name, grammar in (
        ("nonsense", "%%%"),
        ("no start", 'a: "a"'),
        ("an unknown rule", "start: nothing"),
        ("5000 brackets", "start: " + "(" * 5000 + '"a"' + ")" * 5000),
        ("only itself", "start: start"),
        ("GBNF", 'root ::= "a"'),
        ("an import", "%import .etc.passwd\nstart: passwd"),
    ):
        yield plain(f"grammar: {name}", "rammar", guided_grammar=grammar)
    yield plain("grammar: left recursion", status=200, guided_grammar='start: start "a" | "b"', max_tokens=4)
    yield plain("no choices", "choice", guided_choice=[])
    yield plain("2000 choices", "choice", guided_choice=["a"] * 2000)
    yield plain("an empty choice", "choice", guided_choice=[""])
    yield plain("two forms", "a form each", guided_regex="a", guided_json={})
    yield plain(
        "structured_outputs: unknown", "structured_outputs", structured_outputs={"backend": "outlines"}
    )
    yield plain("structured_outputs: two", "exactly one", structured_outputs={"regex": "a", "choice": ["a"]})

    # Tools whose schemas nobody checked, or that are the same twice (CVE-2025-48944).
    yield chat("tools: a text", "tools", tools="f")
    yield chat("tools: null", "tools[0]", tools=[None])
    yield chat("tools: no function", "function", tools=[{"type": "function"}])
    yield chat("tools: another type", "type", tools=[{"type": "code_interpreter"}])
    yield chat("tools: twice the same", "taken", tools=[tool("f"), tool("f")])
    yield chat("tools: 129", "128", tools=[tool(f"f{one}") for one in range(129)])
    yield chat("tools: a name with a quote", "name", tools=[tool('f"; import os')])
    yield chat("tools: a type", "type", tools=[tool("f", type="nothing")], tool_choice="required")
    yield chat(
        "tools: a type of a number",
        "",
        tools=[tool("f", properties={"x": {"type": 7}})],
        tool_choice="required",
    )
    yield chat(
        "tools: a pattern",
        "",
        tools=[tool("f", properties={"x": {"type": "string", "pattern": "("}})],
        tool_choice="required",
    )
    yield chat("tools: a description of 5 MB", "too large", tools=[tool("f", description="a" * 5_000_000)])
    yield Hostile("tools: of a prompt", "/tokenize", b'{"prompt": "a", "tools": [{}]}', 400, "tools")
    yield chat("tool_choice without tools", "tool_choice", tool_choice="required")
    yield chat(
        "tool_choice of another",
        "none of the tools",
        tools=[tool("f")],
        tool_choice={"type": "function", "function": {"name": "g"}},
    )
    yield chat("tool_choice unknown", "tool_choice", tools=[tool("f")], tool_choice="any")
