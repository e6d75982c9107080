"""Check a grammar without a model: whatever is wrong with it for every vocabulary is found here.

The grammar is compiled for a vocabulary of the 256 bytes, in the process that tries grammars
(`grammar_sandbox`). What depends on a model's own vocabulary is found by `compiler`, later.
"""

from importlib.util import find_spec

from holdfast.core.structured_output import StructuredOutput
from holdfast.errors import InvalidRequest
from holdfast.sandbox.grammar_sandbox import GrammarSandbox
from holdfast.structured.spec import KIND_NAMES, write_grammar

_BYTES = [bytes([byte]) for byte in range(256)]
_EOS_ID = len(_BYTES)


def require_llguidance() -> None:
    if find_spec("llguidance") is None:
        raise InvalidRequest(
            "structured output needs llguidance, which is not installed; "
            "install it with: pip install 'holdfast[structured]'"
        )


def check_grammar(structured: StructuredOutput) -> None:
    """Raise `InvalidRequest` if no model could follow this."""
    grammar = write_grammar(structured)
    require_llguidance()
    sandbox = GrammarSandbox([*_BYTES, b""], [_EOS_ID])
    try:
        trial = sandbox.try_grammar(grammar, is_lark=structured.kind == "lark", follow=False)
    finally:
        sandbox.close()
    if trial.fault is not None:
        raise InvalidRequest(f"the {KIND_NAMES[structured.kind]} cannot be used: {trial.fault}")
