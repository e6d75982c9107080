"""Worker processes for untrusted programs: chat templates and grammars."""
