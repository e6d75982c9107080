"""`holdfast chat`: a conversation with a local model or with a server."""
