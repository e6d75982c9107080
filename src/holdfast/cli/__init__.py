"""The `holdfast` command: `main` has the commands, `commands` one module for each."""
