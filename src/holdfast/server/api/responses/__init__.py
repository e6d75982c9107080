"""OpenAI's Responses API, stateless: `requests` -> `translation` -> the chat route's engine path ->
`objects`.
"""
