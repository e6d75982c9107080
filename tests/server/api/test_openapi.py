"""The OpenAPI document describes every route, body, response and error."""

from typing import Any

import pytest

from holdfast.server.api.schema.openapi import make_documented_app
from support.serving import Server


@pytest.fixture(scope="module")
def document(tiny_server: Server) -> dict[str, Any]:
    answer = tiny_server.get("/openapi.json")
    assert answer.status_code == 200
    content: dict[str, Any] = answer.json()
    return content


def test_docs_page_shows_the_document(tiny_server: Server) -> None:
    page = tiny_server.get("/docs")
    assert page.status_code == 200 and "'/openapi.json'" in page.text


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(path, method, one) for path, item in document["paths"].items() for method, one in item.items()]


def test_document_contains_every_route(document: dict[str, Any]) -> None:
    assert {(path, method) for path, method, _ in operations(document)} == {
        *(
            (f"/v1/{name}", "post")
            for name in ("chat/completions", "completions", "score", "replay", "continue")
        ),
        *((f"/v1/{name}", "post") for name in ("responses", "responses/input_tokens")),
        *((f"/v1/{name}", "post") for name in ("messages", "messages/count_tokens")),
        ("/v1/embeddings", "post"),
        *(("/tokenize", "post"), ("/detokenize", "post"), ("/tokenizer_info", "get")),
        *(("/v1/files", "post"), ("/v1/files", "get"), ("/v1/files/{file_id}", "get")),
        *(("/v1/files/{file_id}", "delete"), ("/v1/files/{file_id}/content", "get")),
        *(("/v1/batches", "post"), ("/v1/batches", "get"), ("/v1/batches/{batch_id}", "get")),
        ("/v1/batches/{batch_id}/cancel", "post"),
        *(("/health", "get"), ("/version", "get"), ("/load", "get")),
        *(
            ("/metrics", "get"),
            ("/v1/models", "get"),
            ("/v1/models/{name}", "get"),
            ("/v1/certificate", "get"),
            ("/v1/receipt_key", "get"),
        ),
    }


def test_every_operation_documents_body_and_responses(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    known_tags = {tag["name"] for tag in document["tags"]}
    names = [one["operationId"] for _, _, one in operations(document)]
    assert len(set(names)) == len(names)
    for path, method, one in operations(document):
        assert one["description"] and set(one["tags"]) <= known_tags and len(one["tags"]) == 1, path
        for status, response in one["responses"].items():
            assert response["description"] and response["content"], (path, status)
            if status not in ("200", "503"):
                schema = response["content"]["application/json"]["schema"]
                name = "AnthropicErrorResponse" if path.startswith("/v1/messages") else "ErrorResponse"
                assert schema == {"$ref": f"#/components/schemas/{name}"}, (path, status)
        assert "default" in one["responses"] and "422" not in one["responses"], path
        if method == "post" and path not in ("/v1/files", "/v1/batches/{batch_id}/cancel"):  # a form; no body
            reference = one["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            body = schemas[reference.rpartition("/")[2]]
            for variant in [schemas[one["$ref"].rpartition("/")[2]] for one in body.get("oneOf", ())] or [
                body
            ]:
                assert variant["additionalProperties"] is False and variant["properties"], path
            assert {"400", "413", "415"} <= set(one["responses"]), path


def test_every_reference_resolves(document: dict[str, Any]) -> None:
    left: list[Any] = [document]
    num_references = 0
    while left:
        one = left.pop()
        if isinstance(one, dict):
            if isinstance(one.get("$ref"), str):
                num_references += 1
                assert one["$ref"].rpartition("/")[2] in document["components"]["schemas"]
            left += one.values()
        elif isinstance(one, list):
            left += one
    assert num_references > 50


def test_api_keys_are_documented() -> None:
    assert "security" not in make_documented_app().openapi()
    document = make_documented_app(with_keys=True).openapi()
    assert document["security"] == [{"key": []}, {"x-api-key": []}]
    schemes = document["components"]["securitySchemes"]
    assert schemes["key"]["scheme"] == "bearer" and schemes["x-api-key"]["name"] == "X-Api-Key"
