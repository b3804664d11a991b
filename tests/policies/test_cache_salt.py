"""Salts: whose prompts may meet in an engine's prefix cache and in our index."""

from __future__ import annotations

from dataclasses import replace

from tests.fakes import make_call
from tierway.policies.cache_salt import prefix_seed, salt_to_send
from tierway.policies.types import Model

OPEN = Model("m", "small", served_name="served")
APART = replace(OPEN, cache_salt="tenant")


def test_without_isolation_nothing_is_sent() -> None:
    assert salt_to_send(make_call(tenant="acme"), OPEN) is None
    assert salt_to_send(make_call(tenant="acme", cache_salt="own"), OPEN) is None


def test_each_tenant_has_one_that_does_not_tell_its_name() -> None:
    acme, globex = (salt_to_send(make_call(tenant=name), APART) for name in ("acme", "globex"))
    assert acme is not None
    assert globex is not None
    assert acme != globex
    assert "acme" not in acme
    assert acme == salt_to_send(make_call("another question", tenant="acme"), APART)


def test_a_client_may_separate_further() -> None:
    salts = {
        salt_to_send(make_call(tenant=tenant, cache_salt=own), APART)
        for tenant, own in (("a", "x"), ("a", "y"), ("ax", ""), ("", "ax"), ("b", "x"))
    }
    assert len(salts) == 5


def test_embeddings_have_no_prefix_cache_to_share() -> None:
    call = replace(make_call(tenant="acme"), wire="embeddings")
    assert salt_to_send(call, APART) is None


def test_prompts_of_two_tenants_or_salts_never_meet_where_they_are_apart() -> None:
    def seed(tenant: str, model: Model, **fields: str) -> str:
        return prefix_seed(make_call(tenant=tenant, **fields), model)

    assert seed("a", OPEN) == seed("b", OPEN)
    assert seed("a", APART) != seed("b", APART)
    assert seed("a", OPEN) != seed("a", OPEN, cache_salt="own")
    assert seed("a", OPEN, cache_salt="own") == seed("b", OPEN, cache_salt="own")
    assert seed("a", OPEN) != seed("a", replace(OPEN, served_name=None))


def test_a_salt_that_is_no_text_is_the_engine_s_to_refuse() -> None:
    call = make_call(tenant="acme", cache_salt=7)
    assert salt_to_send(call, APART) == salt_to_send(make_call(tenant="acme"), APART)
