"""docs/reference/http-api.md names every request of the published document, and every refusal that there is."""

from pathlib import Path

from rdzv_protocol import errors

from rdzv_server.http import openapi
from rdzv_server.http.routes import ROUTES

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "http-api.md").read_text()


def test_the_page_for_people_names_every_request_and_every_refusal() -> None:
    paths = openapi.document(ROUTES)["paths"]
    requests = {f"`{method.upper()} {path}`" for path, methods in paths.items() for method in methods}
    refusals = {
        code
        for operation in (operation for methods in paths.values() for operation in methods.values())
        for answer in operation["responses"].values()
        for content in answer["content"].values()
        for part in content["schema"].get("allOf", ())
        for code in part.get("properties", {}).get("code", {}).get("enum", ())
    }
    assert len(requests) > 10 and len(refusals) > 10
    assert [wanted for wanted in requests | {f"`{code}`" for code in refusals} if wanted not in PAGE] == []


def test_the_page_names_every_code_that_the_protocol_has() -> None:
    assert [kind.code for kind in errors.ProtocolError.__subclasses__() if f"`{kind.code}`" not in PAGE] == []
