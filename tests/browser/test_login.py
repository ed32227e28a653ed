"""People log in with a token, and see and do what it allows. Others cannot act in their name."""

import asyncio
import signal
from pathlib import Path
from urllib.parse import quote

import pytest
import pytest_asyncio
from rdzv_protocol import actions, paths

from rdzv_server.words import auth, http, operations
from tests.browser.conftest import NewTab, Tab
from tests.browser.crowd import Crowd
from tests.support.certificates import Authority
from tests.support.message_search import pattern
from tests.support.programs import Server

TOKENS = {
    "agent": "agents-0123456789\nteam-0123456789 team-*",
    "read": "readers-0123456789",
    "admin": "admins-0123456789",
}


@pytest.fixture
def with_tokens(tmp_path: Path) -> tuple[str, ...]:
    """Return the flags of a server with a token for each role."""
    flags = ["--store", "memory"]
    for role, tokens in TOKENS.items():
        path = tmp_path / role
        path.write_text(tokens + "\n")
        path.chmod(0o600)
        flags += [{"agent": "--token-file"}.get(role, f"--{role}-token-file"), str(path)]
    return tuple(flags)


@pytest_asyncio.fixture(loop_scope="session")
async def server(with_tokens: tuple[str, ...]) -> Server:
    return await Server.listen(*with_tokens)


async def log_in(tab: Tab, server: Server, token: str, path: str = "/", scheme: str = "http") -> None:
    await tab.go(f"{scheme}://{server.endpoint}{path}")
    await give(tab, token)


async def give(tab: Tab, token: str) -> None:
    """Type the token into the focused field of the page that asks for it."""
    await tab.page.wait_for_selector("#token:focus")
    await tab.page.fill("#token", token)
    await tab.page.click("main button")


async def log_out(tab: Tab) -> None:
    await tab.page.click("text=Log out")
    await tab.page.wait_for_selector("#token:focus")


async def test_a_token_allows_the_actions_of_its_role(server: Server, tab: Tab) -> None:
    async with Crowd(server.port, token="agents-0123456789") as crowd:
        await crowd.run("team-a", ["a"])
        await crowd.run("other", ["b"])
        await log_in(tab, server, "wrong", "/runs/team-a")
        await tab.shows("main", http.UNKNOWN_TOKEN)
        await tab.is_accessible()
        await give(tab, "readers-0123456789")
        await tab.shows("#reason", "round 1 runs on 1 node")
        assert tab.page.url.endswith("/runs/team-a"), "where it was going"
        assert await tab.page.locator("button[data-path]").count() == 0, "who may look sees no buttons"
        (cookie,) = await tab.page.context.cookies()
        assert cookie["httpOnly"] and cookie["sameSite"] == "Strict" and "readers" not in cookie["value"]
        await log_out(tab)
        assert await tab.page.context.cookies() == []

        await log_in(tab, server, "team-0123456789")
        await tab.shows("#runs", "team-a")
        assert await tab.page.locator("#runs tr").count() == 1
        await tab.go(f"http://{server.endpoint}/runs/other")
        await tab.shows("main", auth.not_for_run(["team-*"], "other"))
        await log_out(tab)

        await log_in(tab, server, "admins-0123456789", "/runs/other")
        await tab.page.click("text=Stop run")
        await tab.page.click("#dialog-do")
        await tab.shows("#reason", operations.stopped(""))


async def test_a_node_that_is_in_no_run_can_be_uncordoned_with_a_permitted_token(server: Server, tab: Tab) -> None:
    """A reader only sees the command of `rdzvctl`. A user who has logged in again elsewhere must reload the page."""
    body, bearer = {"node_id": "n7", "reason": "its fan"}, {"Authorization": "Bearer admins-0123456789"}
    url = f"http://{server.endpoint}{actions.CORDON.path}"
    assert (await tab.page.context.request.post(url, data=body, headers=bearer)).ok
    await log_in(tab, server, "readers-0123456789")
    await tab.shows("#cordons", "Cordoned by admin 127.0.0.1: its fan")
    await tab.shows("#kept-out", "rdzvctl uncordon NODE lets a node take part again")
    assert await tab.page.locator("#kept-out button").count() == 0
    await log_out(tab)
    await log_in(tab, server, "admins-0123456789")
    button = tab.page.get_by_role("button", name="Uncordon node n7")
    await button.wait_for()
    request = tab.page.context.request
    again = f"http://{server.endpoint}{paths.LOGIN}"
    assert (await request.post(again, form={"token": "admins-0123456789", "to": "/"})).ok
    await button.click()
    await tab.page.click("#dialog-do")
    await tab.shows(
        "#dialog-error",
        f"The action was not done: {auth.NO_CSRF}",
    )
    await tab.is_accessible()
    assert [each for each in tab.complaints if "403" not in each] == []
    await tab.page.reload()
    await tab.act("Uncordon", of="node n7")
    await tab.page.wait_for_selector("#kept-out", state="hidden")
    await server.line(pattern(operations.uncordoned("n7", "", by_operator=True)) + r" \(by admin 127\.0\.0\.1\)")


async def test_over_tls_a_session_never_travels_without_it(
    with_tokens: tuple[str, ...], authority: Authority, new_tab: NewTab
) -> None:
    pair = authority.issue("server")
    server = await Server.listen(*with_tokens, "--tls-cert", pair.cert, "--tls-key", pair.key)
    tab = await new_tab(ignore_https_errors=True, color_scheme="dark")
    await tab.go(f"https://{server.endpoint}/")
    await tab.is_accessible()
    await log_in(tab, server, "readers-0123456789", scheme="https")
    await tab.is_live()
    (cookie,) = await tab.page.context.cookies()
    assert cookie["secure"] and cookie["httpOnly"] and cookie["sameSite"] == "Strict"
    await log_out(tab)
    assert await tab.page.context.cookies() == []
    tab.is_content()


async def test_a_session_ends_with_its_token_and_the_page_asks_for_another(
    server: Server, tab: Tab, tmp_path: Path
) -> None:
    await log_in(tab, server, "readers-0123456789")
    await tab.is_live()
    (tmp_path / "read").write_text("another-0123456789\n")
    server.signal(signal.SIGHUP)
    await give(tab, "another-0123456789")
    await tab.is_live()


async def test_a_session_does_nothing_that_the_page_has_not_asked_for(server: Server, tab: Tab) -> None:
    async with Crowd(server.port, token="agents-0123456789") as crowd:
        await crowd.run("run", ["a"])
        await log_in(tab, server, "admins-0123456789", "/runs/run")
        await tab.is_live()
        url = f"http://{server.endpoint}"
        csrf = await tab.page.get_attribute("body", "data-csrf") or ""
        ask, body = tab.page.context.request, {"run_id": "run"}

        async def act(path: str = actions.STOP.path, **headers: str) -> int:
            return (await ask.post(url + path, data=body, headers=headers)).status

        assert await act() == 403, "the cookie alone, which a browser sends by itself"
        assert await act(**{"X-CSRF-Token": "x" + csrf[1:]}) == 403
        assert await act(**{"X-CSRF-Token": csrf, "Origin": "http://evil.example"}) == 403
        assert (await ask.post(f"{url}{paths.LOGOUT}", headers={"Origin": "http://evil.example"})).status == 403
        assert await act(paths.JOIN, **{"X-CSRF-Token": csrf, "Content-Type": paths.MEDIA_TYPE}) == 403
        assert (await ask.get(f"{url}{paths.STATUS}", headers={"Origin": "http://evil.example"})).status == 403
        assert await act(**{"X-CSRF-Token": csrf}) == 200


async def test_a_login_leads_nowhere_else(server: Server, tab: Tab) -> None:
    outside = ("//evil.example", "https://evil.example", "/\\evil.example?", "//?", "?", "/v1/status")
    for to in (*outside, "/runs/\r\nSet-Cookie: a=b", "/?a\r\nSet-Cookie: a=b"):
        request = tab.page.context.request
        answer = await request.post(
            f"http://{server.endpoint}{paths.LOGIN}", form={"token": "readers-0123456789", "to": to}, max_redirects=0
        )
        assert (answer.status, answer.headers["location"]) == (303, "/")


async def test_a_login_keeps_the_filter_of_runs(server: Server, tab: Tab) -> None:
    async with Crowd(server.port, token="agents-0123456789") as crowd:
        await crowd.run("team-a", ["a"])
        await crowd.run("other", ["b"])
        filtered = f"/?words={quote('team-a & more')}&phase=running"
        await log_in(tab, server, "wrong", filtered)
        await tab.shows("main", http.UNKNOWN_TOKEN)
        await give(tab, "readers-0123456789")
        await tab.is_live()
        assert tab.page.url.endswith(filtered)
        await tab.page.context.clear_cookies()
        await tab.go(f"http://{server.endpoint}/?words={'x' * 2_000}")
        await give(tab, "readers-0123456789")
        await tab.is_live()
        assert tab.page.url.endswith(f"{server.endpoint}/"), "too long"


async def test_guessing_by_the_login_is_as_slow_as_by_any_other_path(server: Server, tab: Tab) -> None:
    request, url = tab.page.context.request, f"http://{server.endpoint}{paths.LOGIN}"
    statuses = await asyncio.gather(
        *(request.post(url, form={"token": f"guess {number}"}, max_redirects=0) for number in range(140))
    )
    assert {answer.status for answer in statuses} == {401, 429}
