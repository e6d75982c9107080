"""Triton's interpreter in less than half of the time: types are described only when somebody asks.

Every operation makes new types of its operands. Their names, and the types of the tuples that hold
shapes, are for error messages and for the compiler.
"""

from functools import cache
from typing import Any


def make_quick(interpreter: Any) -> None:
    """Change the interpreter for the rest of the process."""
    _patch_once(interpreter)
    language = interpreter.tl.core
    _describe_blocks_when_asked(language)
    _describe_tuples_when_asked(language)
    _look_up_numpy_types_once(interpreter)


def _patch_once(interpreter: Any) -> None:
    """Patch the language once for a launch.

    The interpreter patches it again for every device function. Ours see the language as the launch
    does. Triton's own see another module of it; it is patched once and stays patched.
    """
    patched = set()

    def call(self: Any, *args: object, **kwargs: object) -> object:
        if not self.fn.__module__.startswith("holdfast") and self.fn.__module__ not in patched:
            patched.add(self.fn.__module__)
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*args, **kwargs)

    interpreter.InterpretedFunction.__call__ = call


def _describe_blocks_when_asked(language: Any) -> None:
    block_type, unwrap = language.block_type, language._unwrap_shape
    count = cache(language.validate_block_shape)

    def make(self: Any, element_ty: Any, shape: Any) -> None:
        self.element_ty = element_ty
        sizes = tuple(shape if all(type(size) is int for size in shape) else unwrap(shape))
        assert sizes
        self.shape = language.tuple(sizes)
        self.numel = count(sizes)

    block_type.__init__ = make
    block_type.name = property(lambda self: f"<{self.shape}, {self.element_ty}>")


def _describe_tuples_when_asked(language: Any) -> None:
    sequence, make_type, of_values = language.tuple, language.tuple_type, language._type_for_tuple_values

    def make(self: Any, args: Any, type: Any = None) -> None:
        self.values = list(args)
        self._given = type

    def describe(self: Any) -> Any:
        given = self._given
        if given is None:
            return of_values(self.values)
        return given if isinstance(given, make_type) else make_type(given)

    sequence.__init__ = make
    sequence.type = property(describe, lambda self, type: setattr(self, "_given", type))


def _look_up_numpy_types_once(interpreter: Any) -> None:
    look_up = interpreter._get_np_dtype
    of_scalar = cache(look_up)

    def numpy_type(kind: Any) -> Any:
        scalar = kind.scalar
        return look_up(scalar) if scalar.is_ptr() else of_scalar(scalar)

    interpreter._get_np_dtype = numpy_type
