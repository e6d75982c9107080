"""`holdfast serve`: options, environment, configuration file, their precedence, and errors."""

import os
import re
import subprocess
import sys
from dataclasses import fields
from types import SimpleNamespace

import pytest

from holdfast.cli.options import engine as o
from holdfast.cli.options.config_file import MAX_FILE_CHARS
from holdfast.core.options import option_fields
from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError
from holdfast.ray.config import ReplicasConfig
from holdfast.server.config import ServerConfig

SECRET = "sk-very-secret"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in os.environ:
        if name.startswith("HOLDFAST_") and name not in ("HOLDFAST_CACHE_DIR", "HOLDFAST_CERTIFICATION"):
            monkeypatch.delenv(name)


@pytest.fixture
def served(monkeypatch):
    """The configurations the server was started with last. It ends at once with exit_code."""
    pytest.importorskip("fastapi")
    served = SimpleNamespace(exit_code=0, times=0)

    def run(server, models, read_config):
        served.read_config = read_config
        served.server, served.models, served.engine = server, models, models[0].engine
        served.times += 1
        return served.exit_code

    monkeypatch.setitem(sys.modules, "holdfast.server.main", SimpleNamespace(run=run))
    monkeypatch.setattr(o, "open_model", lambda config: None)  # the models do not exist
    return served


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "config.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def refused(holdfast, served, *arguments):
    """The error of wrong arguments; nothing is started."""
    result = holdfast("serve", *arguments, code=2)
    assert served.times == 0
    assert result.stdout == ""
    return result.stderr


# The command line


def test_serve_without_options_has_the_defaults(holdfast, served):
    holdfast("serve")
    assert served.server == ServerConfig()
    assert served.engine == EngineConfig()


def test_every_setting_of_server_and_engine_is_an_option(holdfast, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    shown = holdfast("serve", "--help").stdout
    assert all(f"\n{panel}:\n" in shown for panel in ("Server", "Limits", "Engine", "Logs"))
    for config in (ServerConfig, EngineConfig, ReplicasConfig):
        offered = list(option_fields(config))
        assert {one.field_name for one in offered} == {one.name for one in fields(config)} - {
            "model",
            "kv_share",
        }
        for one in offered:
            assert f"--{one.name.replace('_', '-')} " in shown
            assert f"HOLDFAST_{one.name.upper()}" in shown


def named(served):
    return [(one.names, one.engine.model) for one in served.models]


@pytest.fixture
def sharing(monkeypatch):
    """Models that do not exist take no memory."""
    plan = lambda opened: ([EngineConfig(), EngineConfig()], "planned")  # noqa: E731
    monkeypatch.setattr("holdfast.engine.start.share_memory.share_memory", plan)


def test_models_are_named_on_the_command_line(holdfast, served, sharing, write, monkeypatch):
    assert holdfast("serve", "--model", "a=x/y=z", "-m", "org/b=w").stdout == "planned\n"
    assert [one.names for one in served.models] == [("a",), ("org/b",)]
    holdfast("serve", "--config", write("models: [a=x, b=y]\nmodel: z"), "typed")
    assert named(served) == [((), "typed")]
    monkeypatch.setenv("HOLDFAST_MODELS", "a=x,b=y")
    holdfast("serve")
    assert [one.names for one in served.models] == [("a",), ("b",)]


def test_single_model_may_be_given_as_an_option(holdfast, served, tmp_path):
    holdfast("serve", "--model", "a=x/y")
    assert named(served) == [(("a",), "x/y")]
    holdfast("serve", "-m", "x/y", "--served-model-name", "b")
    assert named(served) == [(("b",), "x/y")]
    folder = tmp_path / "a=b"
    folder.mkdir()
    holdfast("serve", "--model", folder)
    assert named(served) == [((), str(folder))]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--model", "a=x", "--model", "a=y"), "two models are named a; name them: --model NAME=MODEL"),
        (
            ("--model", "a=x", "--model", "b=y", "--served-model-name", "c"),
            "served_model_name is for one model",
        ),
        (("--model", "a=x", "--model", "b=y", "--replicas", "2"), "replicas serve one model"),
        (("--model", "=x"), "--model takes MODEL or NAME=MODEL, not '=x'"),
        (("--model", "a="), "--model takes MODEL or NAME=MODEL"),
        (("x", "--model", "a=x"), "give MODEL, or --model for each model, not both"),
        (("x", "y"), "give several as --model NAME=MODEL"),
    ],
)
def test_models_that_cannot_be_served_together_are_refused(holdfast, served, sharing, arguments, says):
    assert says in " ".join(refused(holdfast, served, *arguments).split())


GIVEN = {
    "model": "some/model",
    "port": "81",
    "served-model-name": ["a", "b"],
    "inspector": False,
    "drain-timeout": "1.5",
    "log-format": "json",
    "dtype": "fp32",
    "max-model-len": "100",
    "kv-memory": "1MiB",
    "determinism": "off",
    "prefix-cache": False,
}


def by_arguments(monkeypatch, write):
    for name, value in GIVEN.items():
        if name == "model":
            yield value
        elif value is False:
            yield f"--no-{name}"
        else:
            for one in value if isinstance(value, list) else [value]:
                yield from (f"--{name}", one)


def by_environment(monkeypatch, write):
    for name, value in GIVEN.items():
        text = ", ".join(value) if isinstance(value, list) else str(value or "false")
        monkeypatch.setenv(f"HOLDFAST_{name.upper().replace('-', '_')}", text)
    return ()


def by_file(monkeypatch, write):
    lines = (f"{name}: {value or 'no'}" for name, value in GIVEN.items())
    return "--config", write("# names as on the command line\n" + "\n".join(lines))


@pytest.mark.parametrize("arguments", [by_arguments, by_environment, by_file])
def test_options_are_read(holdfast, served, monkeypatch, write, arguments):
    holdfast("serve", *arguments(monkeypatch, write))
    assert served.server == ServerConfig(
        port=81, served_model_names=("a", "b"), inspector=False, drain_timeout=1.5, log_format="json"
    )
    assert served.engine == EngineConfig(
        model="some/model",
        dtype="fp32",
        max_model_len=100,
        kv_memory="1MiB",
        determinism="off",
        prefix_cache=False,
    )


def test_chat_template_is_read_from_its_file(holdfast, served, tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages }}")
    holdfast("serve", "--chat-template", template)
    assert served.engine.chat_template == "{{ messages }}"


def test_exit_code_is_the_server_s(holdfast, served):
    served.exit_code = 3
    holdfast("serve", code=3)


def test_chat_template_that_is_too_long_or_no_text_is_refused(holdfast, served, tmp_path):
    path = tmp_path / "template"
    path.write_bytes(b"\xff\xfe")
    assert "UTF-8" in refused(holdfast, served, "--chat-template", path)
    path.write_text("x" * ((1 << 20) + 1))
    assert "longer than" in refused(holdfast, served, "--chat-template", path)


# The environment


@pytest.mark.parametrize("value", [" one , two ", "one two", ",one,,two,"])
def test_environment_variable_with_several_keys(holdfast, served, monkeypatch, value):
    monkeypatch.setenv("HOLDFAST_API_KEY", value)
    holdfast("serve")
    assert served.server.api_keys == ("one", "two")


@pytest.mark.parametrize("value", ["", " , "])
def test_empty_api_key_variable_is_refused(holdfast, served, monkeypatch, value):
    monkeypatch.setenv("HOLDFAST_API_KEY", value)
    assert "HOLDFAST_API_KEY is set, but empty" in refused(holdfast, served)


def test_empty_api_key_variable_is_ignored_beside_the_option(holdfast, served, monkeypatch):
    monkeypatch.setenv("HOLDFAST_API_KEY", "")
    holdfast("serve", "--api-key", "one")
    assert served.server.api_keys == ("one",)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("many", "'--max-model-len': .*(HOLDFAST_MAX_MODEL_LEN: 'many')"),
        ("0", "HOLDFAST_MAX_MODEL_LEN: max_model_len must be .*, not 0"),
    ],
)
def test_error_of_a_variable_names_it_and_its_value(holdfast, served, write, monkeypatch, value, says):
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("HOLDFAST_MAX_MODEL_LEN", value)
    said = refused(holdfast, served, "--config", write("max-model-len: 5"))
    assert re.search(says.replace("(", r"\(").replace(")", r"\)"), said)


def test_other_commands_ignore_the_variables(holdfast, monkeypatch, model):
    monkeypatch.setenv("HOLDFAST_MODEL", "/no/such/model")
    monkeypatch.setenv("HOLDFAST_DTYPE", "int3")
    monkeypatch.setenv("HOLDFAST_MAX_TOKENS", "many")
    holdfast("generate", "the dog", "-m", model, "-n", "1")


# The file


def test_config_file_takes_numbers_and_underscores(holdfast, served, write):
    holdfast("serve", "--config", write("max_num_seqs: 5\nkv-memory: 1048576\nspot-check-rate: 0.5"))
    assert served.engine == EngineConfig(max_num_seqs=5, kv_memory="1048576", spot_check_rate=0.5)


def test_config_file_does_not_split_keys_at_commas(holdfast, served, write):
    holdfast("serve", "--config", write("api-key: one,two"))
    assert served.server.api_keys == ("one,two",)


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
def test_empty_config_file(holdfast, served, write, text):
    holdfast("serve", "--config", write(text))
    assert served.server == ServerConfig()


def test_config_file_named_in_the_environment(holdfast, served, write, monkeypatch):
    monkeypatch.setenv("HOLDFAST_CONFIG", str(write("port: 9000")))
    holdfast("serve")
    assert served.server.port == 9000


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("prot: 1", "line 1: there is no option 'prot'; did you mean port?"),
        (
            "port: 1\nmax-model-length: 5",
            "line 2: there is no option 'max-model-length'; did you mean max-model-len?",
        ),
        ("xyzzy: 1", "see holdfast serve --help"),
        ("config: other.yaml", "there is no option 'config'"),
        ("port: 1\nport: 2", "line 2: port is given twice"),
        ("max-model-len: 1\nmax_model_len: 2", "max-model-len is given twice"),
        ("port:", "port has no value"),
        ("port: [1, 2]", "port takes one value"),
        ("api-key: {a: 1}", "api-key takes values"),
        ("api-key: [[a]]", "api-key must be plain text"),
        ("- port", "must hold options"),
        ("<<: {port: 1}", "there is no option"),
        ("port: 1\n---\nport: 2", "is not YAML"),
        ("port: true", "'--port'"),
        ("port: 1\nmax-model-len: many", "config.yaml, line 2: 'many')"),
        ("port: 1\nmax-model-len: 0", "config.yaml, line 2: max_model_len must be a whole number"),
        ("inspector: perhaps", "'--inspector'"),
        ("host: !!python/object/apply:os.system [ls]", "host takes one value"),
        ("host: !!python/name:os.system x", "host must be plain text"),
        ("a" * 4 + ": &a [*a]", "there is no option"),
    ],
)
def test_config_file_error_names_its_line(holdfast, served, write, text, says, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    said = refused(holdfast, served, "--config", write(text))
    assert says in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "text",
    [
        f"api-key: *{SECRET}",
        f"api-key: {SECRET}: {SECRET}",
        f"api-key: !{SECRET} x",
        f"api-key: {{ {SECRET}: 1 }}",
        f"api-key: {SECRET}\nport: many",
        f"api-key: [{SECRET}, {SECRET}é]",
        f"api-key: ' {SECRET}'",
    ],
)
def test_config_file_error_shows_no_key(holdfast, served, write, text):
    assert SECRET not in refused(holdfast, served, "--config", write(text))


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff\xfe\x00",
        b"port: \x00",
        b"[" * 2_000,
        b"{a: " * 2_000,
        b"a: " * 9_000,
        b"&a " * 1000,
        b"\t- x",
        b"%Y 1\n",
    ],
    ids=["utf16", "null", "lists", "mappings", "colons", "anchors", "tab", "directive"],
)
def test_hostile_config_file_is_one_line_of_error(holdfast, served, write, raw, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    assert refused(holdfast, served, "--config", write(raw)).count("\n") == 1


def test_config_file_that_is_too_large_or_missing(holdfast, served, write, tmp_path):
    large = write(b"#" * (MAX_FILE_CHARS + 1))
    assert f"longer than {MAX_FILE_CHARS} characters" in refused(holdfast, served, "--config", large)
    assert "cannot be read" in refused(holdfast, served, "--config", tmp_path / "none.yaml")
    assert "cannot be read" in refused(holdfast, served, "--config", tmp_path)


# The file, read again


@pytest.fixture
def reloading(holdfast, monkeypatch, write):
    """A server that reads its configuration again: `reloading(arguments, text, then)` gives what it reads then."""

    def call(arguments, text, *then):
        found = []

        def run(server, models, read_config):
            for one in then:
                write(one)
                try:
                    found.append(read_config())
                except ConfigError as error:
                    found.append(str(error))
            return 0

        monkeypatch.setitem(sys.modules, "holdfast.server.main", SimpleNamespace(run=run))
        monkeypatch.setattr(o, "open_model", lambda config: None)
        holdfast("serve", *arguments, "--config", write(text))
        return found

    return call


def test_file_that_is_read_again_gives_new_values_and_leaves_what_was_typed(reloading, monkeypatch, caplog):
    monkeypatch.setenv("HOLDFAST_MAX_STOPS", "7")
    text = "max-choices: 2\nmax-prompts: 2\nmax-stops: 2\napi-key: [a]\nmodel: x\n"
    then = "max-choices: 3\nmax-stops: 3\napi-key: [a, b]\nmodel: y\nport: 5"
    (server,) = reloading(("--max-prompts", "9"), text, then)
    assert (server.max_choices, server.max_prompts, server.max_stops) == (3, 9, 7)
    assert server.api_keys == ("a", "b")
    assert "read at the next start only: model, port" in caplog.text


def test_option_that_leaves_the_file_has_its_default_again(reloading):
    (server,) = reloading((), "max-choices: 2", "")
    assert server == ServerConfig()


def test_wrong_file_that_is_read_again_is_an_error_and_the_next_one_counts(reloading):
    found = reloading(
        (), "max-choices: 2", "max-choices: many", "max-choices: 0", "max-choise: 1", "max-choices: 4"
    )
    assert "many" in found[0] and "line 1: max_choices must be" in found[1] and "did you mean" in found[2]
    assert found[3].max_choices == 4


# Precedence


def test_command_line_overrides_environment_overrides_file(holdfast, served, write, monkeypatch):
    path = write("port: 1003\nmax-stops: 3\nmax-prompts: 3\napi-key: [file]\nmodel: file\ninspector: false")
    monkeypatch.setenv("HOLDFAST_PORT", "1002")
    monkeypatch.setenv("HOLDFAST_MAX_STOPS", "2")
    monkeypatch.setenv("HOLDFAST_API_KEY", "environment,other")
    monkeypatch.setenv("HOLDFAST_MODEL", "environment")
    holdfast("serve", "--config", path, "--port", "1001")
    server = served.server
    assert (server.port, server.max_stops, server.max_prompts, server.max_choices) == (1001, 2, 3, 32)
    assert server.api_keys == ("environment", "other")
    assert server.inspector is False
    assert served.engine.model == "environment"
    holdfast("serve", "typed", "--api-key", "typed", "--inspector", "--config", path)
    assert served.server.api_keys == ("typed",)
    assert served.server.inspector is True
    assert served.engine.model == "typed"
    monkeypatch.delenv("HOLDFAST_MODEL")
    holdfast("serve", "--config", path)
    assert served.engine.model == "file"


# Keys


def test_help_shows_no_key(holdfast, write, monkeypatch):
    monkeypatch.setenv("HOLDFAST_API_KEY", SECRET)
    result = holdfast("serve", "--config", write(f"api-key: {SECRET}\nport: 1234"), "--help")
    assert SECRET not in result.output
    assert "1234" in result.output  # what is shown is what would be used


@pytest.mark.parametrize(
    "arguments",
    [
        ("model", "--api-key", "one", SECRET),
        ("--api-key", f" {SECRET}"),
        ("--api-key", f"{SECRET}é"),
        ("--api-key", SECRET, "--port", "many"),
        (f"--api-kee={SECRET}",),
    ],
)
def test_error_shows_no_key(holdfast, served, arguments):
    assert SECRET not in refused(holdfast, served, *arguments)


# Missing packages


@pytest.mark.parametrize("package", ["fastapi", "prometheus_client"])
def test_missing_server_package_says_what_to_install(holdfast, served, monkeypatch, package):
    from importlib import util

    find = util.find_spec
    monkeypatch.setattr(
        "holdfast.cli.console.find_spec", lambda name: None if name == package else find(name)
    )
    said = refused(holdfast, served)
    assert package in said
    assert "pip install 'holdfast[server]'" in said
    assert said.count("\n") == 1


def test_yaml_is_needed_only_for_a_config_file(holdfast, served, monkeypatch, write):
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert "pip install 'holdfast[server]'" in refused(holdfast, served, "--config", write("port: 1"))
    holdfast("serve")


def test_help_needs_no_server_package():
    code = (
        "import sys; sys.modules |= dict.fromkeys(('yaml', 'fastapi', 'uvicorn', 'msgspec', 'prometheus_client'));"
        "from holdfast.cli.main import app; app(['serve', '--help'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--api-key" in done.stdout
