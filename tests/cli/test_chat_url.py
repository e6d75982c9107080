"""`holdfast chat --url`: a conversation with a server."""

import json

import pytest

from holdfast.cli.server_client import StreamedAnswer
from support.fake_server import FakeServer
from support.serving import serving

CHAT = "/v1/chat/completions"


@pytest.fixture
def server(monkeypatch):
    monkeypatch.delenv("HOLDFAST_API_KEY", raising=False)
    with FakeServer(lambda body: [f"{len(body['messages'])}", " said"]) as running:
        yield running


@pytest.fixture
def chat(holdfast, server):
    def call(*arguments, stdin="hello\n", code=0):
        return holdfast("chat", "--url", server.url, *arguments, stdin=stdin, code=code)

    return call


def messages(server):
    return [
        [(one["role"], one["content"]) for one in asked.body["messages"]] for asked in server.completions()
    ]


def test_server_gets_all_turns_until_reset(chat, server):
    result = chat("--system", "be brief", stdin="one\ntwo\n/reset\nthree\n/exit\nfour\n")
    assert result.stdout.splitlines() == ["2 said", "4 said", "2 said"]
    begin = ("system", "be brief")
    assert messages(server) == [
        [begin, ("user", "one")],
        [begin, ("user", "one"), ("assistant", "2 said"), ("user", "two")],
        [begin, ("user", "three")],
    ]


def test_reasoning_is_taken_from_the_stream():
    answer = StreamedAnswer()
    for delta in ({"reasoning_content": "Hm."}, {"reasoning": " So."}, {"content": "Yes"}):
        answer.update(json.dumps({"choices": [{"delta": delta}]}).encode())
    assert (answer.reasoning, answer.text, answer.num_tokens) == ("Hm. So.", "Yes", 3)


def test_summary_has_the_mode_if_the_server_sends_it(chat, server):
    assert "certified · 2 tokens · seed 7 · length" in chat("-d", "--seed", "7").stderr
    assert "ordinary · 2 tokens · seed 5 · length" in chat().stderr
    server.holdfast = False
    assert "\n2 tokens · length" in f"\n{chat().stderr}"


def test_defaults_are_not_sent(chat, server):
    chat()
    body = server.completions()[0].body
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    said = {"messages": [{"role": "user", "content": "hello"}]}
    assert body == {"model": "fake", "max_tokens": 512, "temperature": 0.7, **streamed, **said}


def test_sampling_options_are_sent(chat, server):
    given = "-n 9 -t 0 --top-k 3 --min-p 0.1 --stop x --stop y -d --logit-bias 70=-5 --allowed-token-id 4"
    chat(*given.split(), "--bad-word", "no", "--presence-penalty", "1")
    body = server.completions()[0].body
    wanted = {"max_tokens": 9, "temperature": 0.0, "top_k": 3, "min_p": 0.1, "stop": ["x", "y"]}
    wanted |= {"deterministic": True, "logit_bias": {"70": -5.0}, "allowed_token_ids": [4]}
    wanted |= {"bad_words": ["no"], "presence_penalty": 1.0}
    assert body | wanted == body


def test_model_option_names_the_model(chat, server):
    chat("--model", "other")
    assert server.completions()[0].body["model"] == "other"
    assert server.count("/v1/models") == 0


def test_api_key_is_sent(chat, server, monkeypatch):
    server.api_key = "secret"
    refused = chat(code=2)
    assert "the server says 401: that is not the key" in refused.stderr
    chat("--api-key", "secret")
    monkeypatch.setenv("HOLDFAST_API_KEY", "secret")
    chat()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--max-model-len", "64", "--num-threads", "1"), "--max-model-len, --num-threads"),
        (("a-model",), "MODEL"),
    ],
)
def test_options_of_a_local_model_are_refused_with_url(chat, server, options, named):
    result = chat(*options, code=2)
    assert f"error: {named} is for a local model" in result.stderr
    assert server.received == []


def test_local_model_is_argument_or_option_but_not_both(holdfast, model):
    holdfast("chat", "-m", model, stdin="")
    twice = holdfast("chat", model, "-m", model, stdin="", code=2)
    assert "the model is given twice" in twice.stderr


def test_wrong_option_is_refused_before_anything_is_sent(chat, server, holdfast):
    for options, said in (
        (("--bad-token-id", "5"), "--bad-token-id cannot be sent"),
        (("--top-p", "3"), "top_p"),
    ):
        result = chat(*options, code=2)
        assert said in result.stderr
    assert server.received == []
    assert "--api-key is for a server" in holdfast("chat", "--api-key", "k", stdin="", code=2).stderr


def test_server_error_is_one_line_and_its_turn_is_dropped(chat, server):
    server.status = 503
    result = chat(stdin="one\ntwo\n")
    assert result.stderr.splitlines() == ["error: the server says 503: we are busy"] * 2
    assert result.stdout == ""
    assert messages(server) == [[("user", "one")], [("user", "two")]]


def test_error_event_inside_an_answer_is_shown(chat, server):
    server.error = {"message": "a pass failed", "type": "server_error"}
    result = chat(stdin="one\ntwo\n")
    assert result.stderr.splitlines() == ["error: a pass failed"] * 2
    assert messages(server)[1] == [("user", "two")]


@pytest.mark.parametrize("pieces", [0, 1])
def test_broken_connection_is_reported(chat, server, pieces):
    server.break_after = pieces
    result = chat()
    assert result.stderr.count("ended the connection inside an answer") == 1


def test_line_separators_inside_an_event_do_not_split_it(chat, server):
    server.deltas = lambda body: ["a\u2028b\x85", "c"]
    assert chat().stdout == "a\u2028b\x85c\n"


def test_proxies_of_the_environment_are_ignored(chat, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert chat().stdout == "1 said\n"


def test_redirect_is_not_followed(chat, server):
    server.status = 307
    assert "the server says 307" in chat().stderr


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:1", "the server at http://127.0.0.1:1 cannot be reached"),
        ("ftp://x", "no address of a server"),
    ],
)
def test_wrong_url_is_refused(holdfast, url, said):
    result = holdfast("chat", "--url", url, stdin="hello\n", code=2)
    assert said in result.stderr


def test_context_length_error_drops_the_oldest_turns(chat, server):
    server.max_messages = 4
    result = chat(stdin="one\ntwo\nthree\n")
    assert result.stdout.splitlines() == ["1 said", "3 said", "3 said"]
    assert "the context is full: dropped the oldest turn" in result.stderr
    assert messages(server)[-1] == [("user", "two"), ("assistant", "3 said"), ("user", "three")]


def test_message_that_never_fits_is_reported(chat, server):
    server.max_messages = 1
    result = chat("--system", "be brief")
    assert "error: the server says 400: too long" in result.stderr


def test_interrupt_aborts_the_request_and_the_chat_continues(interrupted_chat, server):
    server.hold = True

    def release():
        assert server.disconnected.acquire(timeout=20)
        server.hold = False
        return b"again\n/exit\n"

    said, _ = interrupted_chat(["--url", server.url], release)
    assert said.decode() == "1\n3 said\n"
    assert json.dumps(server.completions()[-1].body["messages"][1]) == '{"role": "assistant", "content": "1"}'


def test_server_gives_the_same_answers_as_the_local_model(holdfast, model, monkeypatch):
    monkeypatch.delenv("HOLDFAST_API_KEY", raising=False)
    options = ("-d", "-n", "12", "-t", "0.8", "--seed", "3", "--system", "the quick brown fox")
    turns = "the lazy dog\nthe fox\n"
    here = holdfast("chat", model, "--certification", "startup", *options, stdin=turns)
    with serving(model, "--api-key", "secret") as server:
        there = holdfast("chat", "--url", server.url, "--api-key", "secret", *options, stdin=turns)
        ordinary = holdfast("chat", "--url", server.url, "--api-key", "secret", "-n", "3", stdin="the dog\n")
    assert there.stdout == here.stdout
    assert there.stderr == here.stderr  # modes, counts, seeds
    assert "ordinary · " in ordinary.stderr and " · seed " in ordinary.stderr  # it may end before 3 tokens
