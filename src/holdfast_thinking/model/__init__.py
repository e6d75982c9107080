"""A thinking model in its parallel form: layers, packed texts, losses."""
