"""The shapes of bodies and answers, and the OpenAPI document made of them."""
