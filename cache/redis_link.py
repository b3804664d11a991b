"""The connection to a Redis or a Redis Cluster: every use has a deadline, every fault a name.

`redis://` and `rediss://` (TLS) are one server, `redis+cluster://` and `rediss+cluster://` one
node of a cluster, which tells of the others. What the server does not answer in time or refuses
is a CacheError (guard.py). A connection that the server closed meanwhile is replaced and the
command sent once more; every command here may be sent twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from tierway.cache.guard import Away, Guard
from tierway.policies.errors import CacheError
from tierway.policies.protocols import Clock

Result = TypeVar("Result")
Part = str | bytes | int | float
Command = tuple[Part, ...]

SCHEMES = ("redis", "rediss", "redis+cluster", "rediss+cluster")
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


def parse_address(url: str) -> SplitResult:
    """The parts of an address; ValueError says what is wrong with it."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise ValueError(f"must begin with one of {', '.join(f'{s}://' for s in SCHEMES)}")
    if not parts.hostname:
        raise ValueError("must name a host")
    if parts.password:
        raise ValueError("must hold no password: password_env names the variable that does")
    if parts.port == 0:
        raise ValueError("must name a port from 1 to 65535")
    database = parts.path.strip("/")
    if database and (not database.isdecimal() or "cluster" in parts.scheme):
        raise ValueError("must end in the number of a database, and in none for a cluster")
    unknown = [name for name, _ in parse_qsl(parts.query) if name not in _TLS_OPTIONS]
    if unknown:
        raise ValueError(f"has the option {unknown[0]}: must be of {', '.join(_TLS_OPTIONS)}")
    return parts


class RedisLink:
    """The deadlines are those of Guard; a command in a `hurry` is one that a request waits for.
    ValueError for an address that is none. Belongs to one event loop."""

    def __init__(
        self,
        url: str,
        *,
        clock: Clock,
        draw: Callable[[], float],
        password: str | None = None,
        timeout_s: float = 0.25,
        patience_s: float = 2.0,
    ) -> None:
        self._address = parse_address(url)
        self._password = password
        self._guard = Guard(
            f"Redis at {self._address.hostname}:{self._port}",
            clock=clock,
            draw=draw,
            timeout_s=timeout_s,
            patience_s=patience_s,
        )
        self._client: Any = None

    @property
    def name(self) -> str:
        """For people: what it is and where."""
        return self._guard.name

    @property
    def clustered(self) -> bool:
        return "cluster" in self._address.scheme

    def open(self) -> None:
        """Makes the client, which connects when it is first used."""
        if self._client is None:
            self._guard.open()
            self._client = _cluster(self._options()) if self.clustered else _one(self._options())

    async def aclose(self) -> None:
        client, self._client = self._client, None
        self._guard.close()
        if client is not None:
            await client.aclose()

    async def command(self, *command: Part, hurry: bool = False) -> Any:
        return await self.use(lambda client: client.execute_command(*command), hurry=hurry)

    async def pipeline(self, commands: Sequence[Command], *, hurry: bool = False) -> list[Any]:
        """The results of several commands, sent together; they are no transaction."""
        if not commands:
            return []

        async def send(client: Any) -> list[Any]:
            pipe = client.pipeline() if self.clustered else client.pipeline(transaction=False)
            for command in commands:
                pipe.execute_command(*command)
            results: list[Any] = await pipe.execute()
            return results

        return await self.use(send, hurry=hurry)

    async def script(
        self,
        source: str,
        keys: Sequence[str],
        arguments: Sequence[Part],
        *,
        hurry: bool = False,
    ) -> Any:
        """Runs a Lua script, which is atomic, by its digest; the text is sent when the server
        does not know it."""
        from redis.exceptions import NoScriptError

        digest = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()

        async def run(client: Any) -> Any:
            try:
                return await client.evalsha(digest, len(keys), *keys, *arguments)
            except NoScriptError:
                return await client.eval(source, len(keys), *keys, *arguments)

        return await self.use(run, hurry=hurry)

    async def eviction_policy(self) -> str:
        """What the server does when its memory is full; empty where it does not say."""
        told = await self.use(lambda client: client.info("memory"))
        return str(told.get("maxmemory_policy", ""))

    async def use(
        self, action: Callable[[Any], Awaitable[Result]], *, hurry: bool = False
    ) -> Result:
        """Runs `action` on the client as Guard.run does; what Redis says is a CacheError."""

        async def named() -> Result:
            try:
                return await action(self._client)
            except Exception as error:
                self._sort(error)
                raise

        return await self._guard.run(named, hurry=hurry)

    def _sort(self, error: Exception) -> None:
        """Raises the fault in our terms; anything that Redis is not to blame for stays."""
        from redis import exceptions as theirs

        if not isinstance(error, theirs.RedisError | OSError):
            return
        if isinstance(error, theirs.ResponseError) and not isinstance(
            error, theirs.ReadOnlyError | theirs.ClusterDownError | theirs.MasterDownError
        ):
            self._guard.answered()
            raise CacheError(f"{self.name} refuses: {error}") from error
        raise Away(str(error) or type(error).__name__) from error

    @property
    def _port(self) -> int:
        return self._address.port or 6379

    def _options(self) -> dict[str, Any]:
        """Of both clients. The protocol is fixed: replies have one form whatever the release."""
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
        from redis.exceptions import ConnectionError as Lost

        given = self._address
        options: dict[str, Any] = {
            "host": given.hostname,
            "port": self._port,
            "username": unquote(given.username) if given.username else None,
            "password": self._password,
            # The guard keeps the time. With this one the client sends by asyncio.wait_for, which
            # on Python 3.11 may lose a cancellation, and with it our deadline.
            "socket_timeout": None,
            "socket_connect_timeout": self._guard.patience_s,
            "socket_keepalive": True,
            "protocol": 2,
            "retry": Retry(NoBackoff(), 1, supported_errors=(Lost,)),
        }
        if given.scheme.startswith("rediss"):
            options["ssl"] = True
            options.update(parse_qsl(given.query))
        if not self.clustered:
            options["db"] = int(given.path.strip("/") or 0)
        return options


def _one(options: dict[str, Any]) -> Any:
    from redis.asyncio import Redis

    return Redis(**options)


def _cluster(options: dict[str, Any]) -> Any:
    from redis.asyncio import RedisCluster

    # Slots without an owner fail the keys in them, not the whole cache.
    return RedisCluster(**options, require_full_coverage=False)
