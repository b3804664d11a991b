"""Tierway's front door.

    from tierway.middleware import Gateway, GatewayMiddleware

`create_app` (in `tierway.middleware.app`) makes the stand-alone application.
"""

from tierway.middleware.asgi import Gateway, GatewayMiddleware

__all__ = ["Gateway", "GatewayMiddleware"]
