"""Everything that can go wrong, as one tree.

    GatewayError
    ├── BadCall              the client's request is wrong            4xx
    ├── Unauthorised         no key, or a wrong one                   401
    ├── Overloaded           there is capacity, not now               429 / 503, Retry-After
    ├── NoCapacity           nothing is left that could answer        503, Retry-After
    ├── UpstreamError        a replica or cloud model failed
    │   ├── UpstreamTimeout  a named timeout passed                   504
    │   ├── Refused          connection refused, DNS                  502
    │   │   └── Dropped      closed before it answered                502
    │   ├── BrokenStream     cut or malformed after it began          502
    │   ├── SlowFirstToken   never raised: what a slow answer counts as
    │   └── Rejected         the upstream answered with an error status
    ├── CacheError           never reaches a client: bypass, count
    └── ConfigError          a setting is wrong: key, value, allowed

`source` names the part that failed, `retryable` says whether another replica may be asked,
`status` is the HTTP status in OpenAI's terms, `public` the message a client may read.
"""

from __future__ import annotations

from tierway.policies.types import Headers


class GatewayError(Exception):
    source = "gateway"
    retryable = False
    status = 500
    type = "server_error"
    code: str | None = None
    param: str | None = None
    retry_after_s: float | None = None

    def __init__(self, public: str) -> None:
        super().__init__(public)
        self.public = public


class BadCall(GatewayError):
    """The request cannot be served as it is; `param` names the field at fault."""

    source = "client"
    status = 400
    type = "invalid_request_error"

    def __init__(
        self,
        public: str,
        *,
        status: int = 400,
        code: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(public)
        self.status, self.code, self.param = status, code, param


class Unauthorised(GatewayError):
    source = "client"
    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class Overloaded(GatewayError):
    """A refusal for load: no attempt was made, the client may come again."""

    source = "admission"
    status = 429
    type = "rate_limit_error"

    def __init__(self, public: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(public)
        self.retry_after_s = retry_after_s


class NoCapacity(GatewayError):
    """Every replica, tier and cloud model that may take the call failed or is out; when
    nobody was even asked, `attempted` is False and the client may well come again."""

    source = "fleet"
    status = 503
    type = "service_unavailable_error"
    code = "no_capacity"

    def __init__(
        self,
        public: str,
        *,
        retry_after_s: float = 5.0,
        status: int = 503,
        attempted: bool = True,
    ) -> None:
        super().__init__(public)
        self.retry_after_s, self.status = retry_after_s, status
        self.attempted = attempted


class UpstreamError(GatewayError):
    source = "upstream"
    retryable = True
    status = 502
    type = "server_error"

    def __init__(self, public: str, *, replica: str = "") -> None:
        super().__init__(public)
        self.replica = replica


class UpstreamTimeout(UpstreamError):
    """`which` is the setting that ran out: connect, first_token, idle or total."""

    status = 504
    code = "upstream_timeout"

    def __init__(self, which: str, seconds: float, *, replica: str = "") -> None:
        super().__init__(
            f"The upstream did not answer in time ({which}_timeout_s = {seconds:g}).",
            replica=replica,
        )
        self.which = which
        # Once the whole time of the call is gone there is none left for another attempt.
        self.retryable = which != "total"


class SlowFirstToken(UpstreamError):
    """The first token came much later than was predicted; the answer may have been good."""


class Refused(UpstreamError):
    """The replica could not be reached: hard evidence that it is down."""

    code = "upstream_unreachable"


class Dropped(Refused):
    """The replica took the request and closed before a byte of an answer came. The request
    itself may be why, so this is a fault of its own and no hard evidence."""


class BrokenStream(UpstreamError):
    """The answer broke off or made no sense after it had begun."""

    code = "upstream_broken_stream"


class Rejected(UpstreamError):
    """The upstream answered with an error status, kept here with its body and headers.

    Overload (429, 503 and 529) and faults (other 5xx) may be tried elsewhere; other 4xx
    are the client's own and pass on as they came.
    """

    code = "upstream_error"

    def __init__(self, status: int, headers: Headers, body: bytes, *, replica: str = "") -> None:
        super().__init__(f"The upstream answered with status {status}.", replica=replica)
        self.status = status
        self.headers = headers
        self.body = body
        self.retryable = status >= 500 or status in (408, 429)
        self.retry_after_s = _retry_after_s(headers)

    @property
    def overload(self) -> bool:
        """True for answers that speak of load, not of a fault: never a breaker failure."""
        return self.status in (429, 503, 529)


class CacheError(GatewayError):
    """Never fails a client's request; an operator's call on the cache is answered with it."""

    source = "cache"
    status = 503


class ConfigError(GatewayError):
    """`faults` holds one line each: the key, its value, what is allowed."""

    source = "configuration"

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


def _retry_after_s(headers: Headers) -> float | None:
    for name, value in headers:
        if name == b"retry-after":
            try:
                return max(0.0, float(value))
            except ValueError:
                return None
    return None
