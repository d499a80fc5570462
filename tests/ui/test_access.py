"""Who may see the pages: only requests of this host that show the token; every other one is refused."""

from __future__ import annotations

import http.client
from collections.abc import Callable
from pathlib import Path

import pytest

import kstore
from kstore.ui.access import CONTENT_SECURITY_POLICY
from kstore.ui.server import Server
from kstore.ui.viewed_store import ViewedStore
from tests.ui.conftest import Pages

PATHS = [
    "/",
    "/groups",
    "/disk",
    "/partition/orders/0",
    "/partition/orders/0/records",
    "/live/partition/orders/0",
    "/static/page.css",
    "/nothing",
]


@pytest.mark.parametrize("path", PATHS)
def test_a_request_without_the_token_is_refused(orders: Pages, path: str) -> None:
    answer = orders.ask(path, cookie=None)
    assert answer.status == 403
    assert "orders" not in answer.text


@pytest.mark.parametrize(
    "token", ["", "x", "wrong" * 10, "%00", "%F0%9F%92%A9", "%ff", "' or 1=1", "<script>alert(1)</script>"]
)
def test_a_wrong_token_is_refused_even_with_the_cookie(orders: Pages, token: str) -> None:
    answer = orders.ask(f"/?token={token.replace(' ', '+')}")
    assert answer.status == 403
    assert "<script>" not in answer.text


def test_a_right_token_beside_a_wrong_one_is_refused(orders: Pages) -> None:
    assert orders.ask(f"/?token={orders.server.token}&token=x", cookie=None).status == 403


def test_the_token_becomes_a_strict_cookie_and_leaves_the_address(orders: Pages) -> None:
    answer = orders.ask(f"/?token={orders.server.token}", cookie=None)
    assert (answer.status, answer.headers["location"]) == (303, "/")
    name, *attributes = answer.headers["set-cookie"].split("; ")
    assert name == orders.cookie
    assert set(attributes) == {"HttpOnly", "SameSite=Strict", "Path=/"}
    assert orders.ask("/", cookie=name).status == 200


def test_the_token_leads_to_the_page_it_was_added_to(orders: Pages) -> None:
    answer = orders.ask(f"/partition/orders/0/records?offset=0&token={orders.server.token}", cookie=None)
    assert answer.headers["location"] == "/partition/orders/0/records?offset=0"


def test_the_way_from_the_token_stays_on_this_host(orders: Pages) -> None:
    answer = orders.ask(f"//evil.example/?token={orders.server.token}", cookie=None)
    assert answer.headers["location"] == "/evil.example/"


@pytest.mark.parametrize(
    "cookie", ["x=y", "kstore-ui-1={token}", "kstore-ui-{port}=", "kstore-ui-{port}={token}x", "é"]
)
def test_a_wrong_cookie_is_refused(orders: Pages, cookie: str) -> None:
    value = cookie.format(token=orders.server.token, port=orders.server.port)
    assert orders.ask("/", cookie=value).status == 403


def test_the_cookie_is_found_among_others(orders: Pages) -> None:
    assert orders.ask("/", cookie=f"a=b; {orders.cookie}; c").status == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "", "[::1]"])
def test_a_foreign_host_is_refused(orders: Pages, host: str) -> None:
    assert orders.ask("/", Host=host.format(port=orders.server.port)).status == 403


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:{port}", "[::1]:{port}"])
def test_the_names_of_this_machine_are_hosts(orders: Pages, host: str) -> None:
    assert orders.ask("/", Host=host.format(port=orders.server.port)).status == 200


def test_a_request_with_two_hosts_is_refused(orders: Pages) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", orders.server.port, timeout=60)
    connection.putrequest("GET", "/")
    connection.putheader("Host", "evil.example")
    connection.putheader("Cookie", orders.cookie)
    connection.endheaders()
    assert connection.getresponse().status in (400, 403)
    connection.close()


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://{host}", "http://localhost:{port}"])
def test_a_foreign_origin_is_refused(orders: Pages, origin: str) -> None:
    value = origin.format(host=orders.host, port=orders.server.port)
    assert orders.ask("/", Origin=value).status == 403


@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)]
)
def test_a_request_from_another_site_is_refused(orders: Pages, site: str, status: int) -> None:
    assert orders.ask("/", Sec_Fetch_Site=site, Origin=f"http://{orders.host}").status == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "GARBAGE"])
def test_only_get_and_head_are_allowed(orders: Pages, method: str) -> None:
    answer = orders.ask("/", method)
    assert answer.status == 405
    assert answer.headers["allow"] == "GET, HEAD"


def test_head_answers_without_a_body(orders: Pages) -> None:
    answer = orders.ask("/", "HEAD")
    assert (answer.status, answer.text) == (200, "")


@pytest.mark.parametrize(
    ("path", "cookie"),
    [
        *((path, None) for path in PATHS),
        *((path, "") for path in PATHS if not path.startswith("/live/")),  # a stream does not end
        ("/partition/orders/0/record?offset=0", ""),
        ("/?page=x", ""),
    ],
)
def test_every_answer_has_the_headers_that_confine_it(orders: Pages, path: str, cookie: str | None) -> None:
    headers = orders.ask(path, cookie=cookie).headers
    assert headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"
    assert "server" not in headers


def test_a_server_listens_on_the_loopback_address_alone(orders: Pages) -> None:
    assert orders.server.host == "127.0.0.1"
    assert orders.server.base == f"http://{orders.host}"


def test_on_all_addresses_a_host_in_numbers_is_allowed_and_a_name_is_not(root: Path) -> None:
    viewed = ViewedStore([str(root)], clock=lambda: 0)
    with Server(viewed, host="0.0.0.0") as server:
        pages = Pages(server, viewed)
        assert pages.ask("/", Host=f"192.0.2.7:{server.port}").status == 200
        assert pages.ask("/", Host=f"[2001:db8::7]:{server.port}").status == 200
        assert pages.ask("/", Host=f"evil.example:{server.port}").status == 403
        assert pages.ask("/", Host="192.0.2.7:x").status == 403
    viewed.close()


def test_two_servers_have_tokens_and_cookies_of_their_own(root: Path, pages: Callable[[Path], Pages]) -> None:
    first, second = pages(root), pages(root)
    assert first.server.token != second.server.token
    assert second.ask("/", cookie=first.cookie).status == 403
    assert first.cookie.partition("=")[0] != second.cookie.partition("=")[0]


def test_a_port_in_use_is_an_error_that_names_it(orders: Pages, root: Path) -> None:
    viewed = ViewedStore([str(root)], clock=lambda: 0)
    with pytest.raises(kstore.StorageError, match=str(orders.server.port)):
        Server(viewed, port=orders.server.port)
    viewed.close()
