"""Who asks: keys in two headers, and nothing of a key in what is said or held."""

from __future__ import annotations

import pytest

from tierway.middleware.tenants import Tenants, bearer
from tierway.policies.errors import Unauthorised

KEYS = [("sk-acme", "acme"), ("sk-globex", "globex"), ("sk-acme-2", "acme")]


def test_without_tenants_everybody_is_the_anonymous_one() -> None:
    assert Tenants().identify({}) == ""
    assert Tenants().identify({b"authorization": b"Bearer whatever"}) == ""


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ({b"authorization": b"Bearer sk-acme"}, "acme"),
        ({b"authorization": b"bearer   sk-globex "}, "globex"),
        ({b"x-api-key": b"sk-acme-2"}, "acme"),
        ({b"x-api-key": b" sk-acme "}, "acme"),
        ({b"authorization": b"Bearer sk-acme", b"x-api-key": b"sk-globex"}, "acme"),
        ({b"authorization": b"Basic c2stYWNtZQ==", b"x-api-key": b"sk-globex"}, "globex"),
    ],
)
def test_a_key_comes_in_either_header(headers: dict[bytes, bytes], name: str) -> None:
    assert Tenants(KEYS).identify(headers) == name


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {b"authorization": b""},
        {b"authorization": b"Bearer"},
        {b"authorization": b"Bearer sk-unknown"},
        {b"authorization": b"Bearer SK-ACME"},
        {b"authorization": b"sk-acme"},
        {b"x-api-key": b"\xff\x00"},
    ],
)
def test_no_key_or_a_wrong_one_is_refused_without_repeating_it(headers: dict[bytes, bytes]) -> None:
    with pytest.raises(Unauthorised) as caught:
        Tenants(KEYS).identify(headers)
    assert caught.value.status == 401
    assert "sk-" not in caught.value.public


def test_the_object_holds_no_key() -> None:
    tenants = Tenants(KEYS)
    assert "sk-acme" not in repr(vars(tenants))


def test_bearer_reads_the_token_or_nothing() -> None:
    assert bearer({b"authorization": b"Bearer a b"}) == b"a b"
    assert bearer({b"authorization": b"Token a"}) == b""
    assert bearer({}) == b""
