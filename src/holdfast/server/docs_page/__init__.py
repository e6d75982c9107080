"""/docs: the OpenAPI document as a page that needs nothing from another host."""
