"""Stores, indexes, embedders and upstreams by name, as "module:Class": imported when a
configuration asks for them, so that nothing heavy is loaded for what is not used.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

CLASSES: Mapping[str, str] = {
    "store.sqlite": "tierway.cache.sqlite_store:SqliteStore",
    "store.memory": "tierway.cache.memory_store:MemoryStore",
    "store.redis": "tierway.cache.redis_store:RedisStore",
    "store.memcached": "tierway.cache.memcached_store:MemcachedStore",
    "link.memcached": "tierway.cache.memcached_link:MemcachedLink",
    "link.redis": "tierway.cache.redis_link:RedisLink",
    "store.sealed": "tierway.cache.sealed_store:sealed_store",
    "store.sealed-partial": "tierway.cache.sealed_store:SealedPartialStore",
    "index.faiss": "tierway.cache.index:Arena",
    "index.redis": "tierway.cache.redis_index:RedisIndex",
    "index.elsewhere": "tierway.cache.remote:NoIndex",
    "embedder.builtin": "tierway.cache.embedders:PairEmbedder",
    "embedder.openai": "tierway.cache.remote_embedder:OpenAIEmbedder",
    "embedder.sentence-transformers": "tierway.cache.embedders:SentenceTransformersEmbedder",
    "opinion.cross_encoder": "tierway.cache.opinion:CrossEncoderOpinion",
    "opinion.tier": "tierway.router.opinion:TierOpinion",
    "state.redis": "tierway.router.shared_redis:RedisState",
    "upstream.litellm": "tierway.router.cloud:LitellmUpstream",
}


def load(kind: str) -> Any:
    """The class of that name."""
    module, _, name = CLASSES[kind].partition(":")
    return getattr(importlib.import_module(module), name)
