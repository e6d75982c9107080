"""The engine and its surroundings: input and output processing, `EngineThread`, `LLM`."""
