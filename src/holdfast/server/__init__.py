"""HTTP as OpenAI clients expect it. One process answers clients, another runs the engine; `ipc` is between them."""
