"""Redirects calls about classic topics to the cluster that holds them, at a broker without logs."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import RedirectResponse

ELSEWHERE: Final = ("/admin/v2/persistent/", "/admin/v2/non-persistent/", "/lookup/")
"""Paths of calls about topics of the cluster."""


def redirected(app: Any, admin_url: str) -> Any:
    """The app, whose calls about topics of the cluster go to the cluster's own admin API, if it has one."""
    if not admin_url:
        return app

    async def redirect(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].startswith(ELSEWHERE):
            path = (scope.get("raw_path") or scope["path"].encode()).decode("ascii", "replace")
            query = scope.get("query_string", b"").decode("ascii", "replace")
            await RedirectResponse(f"{admin_url}{path}{f'?{query}' if query else ''}")(scope, receive, send)
            return
        await app(scope, receive, send)

    return redirect
