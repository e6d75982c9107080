"""Thinking that models write before their answer: formats, parsers, grammars of what comes after."""
